"""A small task in real sandboxes, a policy that follows a script, and a service that remembers what it was told."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import aiohttp
from aiohttp import web

from environments.errors import InfrastructureFailure
from environments.harness.harness import Budget, Endpoint, HarnessRun
from environments.rollouts.attempt import Means
from environments.rollouts.episode import Episode, EpisodeResult
from environments.rollouts.plan import Patience, RolloutPlan, TaskSet
from environments.sandboxes.bubblewrap.adapter import Bubblewrap
from environments.sandboxes.sandbox import Limits, Sandbox, SandboxSpec
from environments.tasks.task import Task

HARNESS = "scripted@1"
SMALL = SandboxSpec(limits=Limits(memory_bytes=128 << 20, processes=32, disk_bytes=16 << 20))
QUICK = Patience(
    open_seconds=90, close_seconds=60, grace_seconds=30, backoff_seconds=0.01, longest_backoff_seconds=0.05
)


def task(name: str, instruction: str = "echo 1 >answer", digest: str = "d", **fields: Any) -> Task:
    """Return a task whose instruction is what the script does; its tests want a file `answer` that says 1."""
    values: dict[str, Any] = {"agent_timeout_seconds": 60.0, "verifier_timeout_seconds": 60.0, "spec": SMALL}
    return Task(name=name, instruction=instruction, digest=digest, **(values | fields))


def plan_of(*sets: TaskSet, url: str = "http://127.0.0.1:1/v1", **fields: Any) -> RolloutPlan:
    values: dict[str, Any] = {"endpoint": Endpoint(url), "patience": QUICK, "parallel": 4}
    return RolloutPlan(sets=sets, harness=HARNESS, **(values | fields))


class Scripted:
    """Does what the task's instruction says, once the service has answered one turn, where `asks`."""

    name, version = "scripted", "1"
    folders: Mapping[str, Path] = MappingProxyType({})

    def __init__(self, *, asks: bool = False) -> None:
        self._asks = asks

    async def work(self, task: Task, sandbox: Sandbox, endpoint: Endpoint, budget: Budget) -> HarnessRun:
        ids = (await _turn(endpoint),) if self._asks else ()
        result = await sandbox.run(("/bin/sh", "-c", task.instruction), timeout_seconds=60)
        ending = "done" if result.exit_code == 0 else "malformed"
        return HarnessRun(ending, endpoint.headers["x-session-id"], ids, (1,) * len(ids), output_tokens=4 * len(ids))


async def _turn(endpoint: Endpoint) -> str:
    body = {"model": endpoint.model, "messages": [{"role": "user", "content": "go"}], "max_tokens": 4}
    try:
        async with (
            aiohttp.ClientSession(headers=endpoint.headers) as http,
            http.post(f"{endpoint.base_url}/chat/completions", json=body) as response,
        ):
            if response.status != 200:
                raise InfrastructureFailure("service", f"{response.status}: {await response.text()}")
            return response.headers["x-onward-inference-id"]
    except aiohttp.ClientError as error:
        raise InfrastructureFailure("service", repr(error)) from error


async def judge(_: Task, sandbox: Sandbox) -> float:
    """Run the tests of all these tasks."""
    result = await sandbox.run(("/bin/sh", "-c", 'test "$(cat answer)" = 1'), timeout_seconds=60)
    return float(result.exit_code == 0)


@asynccontextmanager
async def means(folder: Path, **given: Any) -> AsyncIterator[Means]:
    sandboxes = Bubblewrap(folder)
    try:
        yield replace(Means(sandboxes, Scripted(), judge), **given)
    finally:
        await sandboxes.close()


@dataclass
class Watched:
    """Remembers what it is told; `on_end` is called first."""

    results: list[EpisodeResult] = field(default_factory=list)
    began_of: list[str] = field(default_factory=list)
    on_end: Callable[[EpisodeResult], None] = lambda _: None

    def began(self, episode: Episode) -> None:
        self.began_of.append(episode.environment)

    def ended(self, result: EpisodeResult, *, again: bool) -> None:
        self.on_end(result)
        self.results.append(result)


@dataclass
class Told:
    """A service over real HTTP that takes feedback as ours does: once an id, and other content under it is refused."""

    feedback: dict[str, dict[str, Any]] = field(default_factory=dict)
    requests: int = 0
    away_for: int = 0  # requests
    away_as: int = 503
    unknown: set[str] = field(default_factory=set)  # sessions
    asked: list[str] = field(default_factory=list)  # sessions, in the order of the requests
    lose_answers: int = 0  # of that many: taken in, but nobody hears of it

    def of(self, metric_name: str) -> list[dict[str, Any]]:
        return [each for each in self.feedback.values() if each["metric_name"] == metric_name]

    @property
    def is_away(self) -> bool:
        return self.away_for > 0

    def _refuses(self) -> bool:
        was_away, self.away_for = self.is_away, max(0, self.away_for - 1)
        return was_away

    async def take(self, request: web.Request) -> web.Response:
        self.requests += 1
        if self._refuses():
            return web.json_response({"error": {"message": "away"}}, status=self.away_as)
        body = await request.json()
        self.asked.append(body["session_id"])
        if body["session_id"] in self.unknown:
            return web.json_response({"error": {"message": "?", "code": "unknown_session"}}, status=404)
        if self.feedback.setdefault(body["feedback_id"], body) != body:
            return web.json_response({"error": {"message": "other", "code": "idempotency_conflict"}}, status=409)
        if self.lose_answers:
            self.lose_answers -= 1
            assert request.transport is not None
            request.transport.abort()
        return web.json_response({"feedback_id": body["feedback_id"], "status": "recorded"})

    async def say_nothing(self, request: web.Request) -> web.Response:
        """Keep who asks for a turn waiting, until he goes away."""
        while request.transport is not None and not request.transport.is_closing():  # noqa: ASYNC110 - told by nobody
            await asyncio.sleep(0.02)
        return web.Response()

    async def ready(self, _: web.Request) -> web.Response:
        return web.json_response({}, status=503 if self._refuses() else 200)


@asynccontextmanager
async def told_service() -> AsyncIterator[tuple[Told, str]]:
    told, app = Told(), web.Application()
    app.router.add_post("/v1/feedback", told.take)
    app.router.add_post("/v1/chat/completions", told.say_nothing)
    app.router.add_get("/readyz", told.ready)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield told, f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
    finally:
        await runner.cleanup()
