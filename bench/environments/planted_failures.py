"""Rollouts on a machine that fails: what becomes of 200 episodes of which every fourth attempt is hit by something.

    python -m bench planted_failures

A sandbox's processes are killed, the disk is full, the service cannot be reached, the tests crash, a sandbox does not
open in time. The policy is a script that always solves its task in a real sandbox and asks a real service for a turn.
Every failure must be named by its part, and none may be a reward of 0: neither in the journal, nor in the store of the
service."""

import asyncio
import hashlib
import sqlite3
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Final, Literal

import aiohttp
import psutil

from bench.table import Row, report
from core.codec import decoder
from core.events import Reward
from environments.errors import InfrastructureFailure
from environments.harness.harness import Budget, Endpoint, Work
from environments.rollouts.attempt import Means
from environments.rollouts.episode import Episode, EpisodeResult
from environments.rollouts.journal import Journal
from environments.rollouts.plan import Patience, Plan, TaskSet
from environments.rollouts.run import here, run_rollouts
from environments.rollouts.scheduler import Place
from environments.sandboxes.bubblewrap.adapter import Bubblewrap
from environments.sandboxes.bubblewrap.opened import BubblewrapSandbox
from environments.sandboxes.sandbox import Limits, Sandbox, SandboxSpec
from environments.tasks.images import machine
from environments.tasks.task import Task
from environments.tasks.verifying import verify
from onward.commands.demo import running_service

Fault = Literal["sandbox", "disk", "service", "verifier", "timeout"]
FAULTS: Final[tuple[Fault, ...]] = ("sandbox", "disk", "service", "verifier", "timeout")
EVERY: Final = 4  # attempts
_EPISODES: Final = 200
_PATIENCE: Final = Patience(open_seconds=10.0, backoff_seconds=0.01, longest_backoff_seconds=0.1, attempts=6)
_LIMITS: Final = Limits(memory_bytes=128 << 20, processes=32, disk_bytes=16 << 20)
_DISK_BYTES: Final = 1 << 16
_NOBODY: Final = "http://127.0.0.1:1/v1"
_PASSES: Final = 'test "$(cat answer)" = 1 && echo 1 >/logs/verifier/reward.txt || echo 0 >/logs/verifier/reward.txt\n'
_CRASHES: Final = "kill -9 $$\n"
_decoder = decoder(Reward)


def fault_of(episode: Episode) -> Fault | None:
    """Return what hits an attempt: every fourth, by its id, and each fault as often as the others."""
    number = int(hashlib.sha256(episode.session_id.encode()).hexdigest()[:8], 16)
    return FAULTS[number // EVERY % len(FAULTS)] if number % EVERY == 0 else None


class Hit:
    """The means of one attempt that is hit by one fault, or by none."""

    name, version = "scripted", "1"
    folders: Mapping[str, Path] = MappingProxyType({})

    def __init__(self, fault: Fault | None, sandboxes: Bubblewrap, folder: Path) -> None:
        self._fault, self._sandboxes, self._folder = fault, sandboxes, folder

    async def open(self, spec: SandboxSpec) -> Sandbox:
        if self._fault == "timeout":
            await asyncio.Event().wait()
        if self._fault == "disk":
            (self._folder / "full" / "image").write_bytes(bytes(_DISK_BYTES + 1))
        return await self._sandboxes.open(spec)

    async def close(self) -> None:
        """Do nothing: the sandboxes are those of all."""

    async def work(self, task: Task, sandbox: Sandbox, endpoint: Endpoint, budget: Budget) -> Work:
        turn = await _turn(replace(endpoint, base_url=_NOBODY) if self._fault == "service" else endpoint)
        if self._fault == "sandbox":
            assert isinstance(sandbox, BubblewrapSandbox)
            _kill(sandbox._process.pid)
        result = await sandbox.run(("/bin/sh", "-c", task.instruction), timeout_seconds=60)
        assert result.exit_code == 0, result
        return Work("done", endpoint.headers["x-session-id"], (turn,), (1,), output_tokens=4)

    async def judge(self, task: Task, sandbox: Sandbox) -> float:
        tests = self._folder / ("crashing" if self._fault == "verifier" else "passing")
        return (await verify(replace(task, tests=tests), sandbox, self._sandboxes)).reward


@dataclass
class Outcome:
    """What came of it. Attempts are by their session."""

    results: dict[str, EpisodeResult]
    rewards: dict[str, float]  # in the service's store, by session
    seconds: float
    given_up: int

    @property
    def zeros(self) -> int:
        """How many failures have a reward: all work was right, so any below 1 is a failure's."""
        journalled = sum(each.reward is not None and each.reward < 1 for each in self.results.values())
        hit = sum(fault_of(each.episode) is not None for each in self.results.values() if _key(each) in self.rewards)
        return journalled + hit + sum(value < 1 for value in self.rewards.values())

    @property
    def unnamed(self) -> list[EpisodeResult]:
        """Return the attempts that were hit and are not named so, or named and were not hit."""
        return [each for each in self.results.values() if each.part != _part_of(fault_of(each.episode))]

    @property
    def hit(self) -> Counter[str]:
        faults = (fault_of(each.episode) for each in self.results.values())
        return Counter(fault for fault in faults if fault is not None)

    @property
    def missing(self) -> int:
        """How many judged episodes the store has no reward of, or more than one."""
        judged = {_key(each) for each in self.results.values() if each.reward is not None}
        return len(judged ^ self.rewards.keys())


def _key(result: EpisodeResult) -> str:
    return result.episode.session_id


def _part_of(fault: Fault | None) -> str | None:
    return "sandbox" if fault == "timeout" else fault


async def run(url: str, store: Path, folder: Path, roots: Path, episodes: int) -> Outcome:
    """Run so many episodes in `folder` against the service at `url`, whose store is `store`.

    `roots` keeps the machine's programs as an image."""
    _write_tests(folder)
    journal, sandboxes = Journal(folder / "journal.db"), Bubblewrap(folder / "sandboxes")
    task = Task(
        "write",
        "echo 1 >answer",
        "d",
        SandboxSpec(root=machine.root(roots), limits=_LIMITS),
        60.0,
        60.0,
        tests=folder / "passing",
    )
    endpoint = Endpoint(url, model="onward-tiny")
    plan = Plan((TaskSet("own", (task,)),), "scripted@1", endpoint, tries=episodes, parallel=8, patience=_PATIENCE)

    async def execute(episode: Episode, each: Task) -> EpisodeResult:
        hit = Hit(fault_of(episode), sandboxes, folder)
        return await here(plan, Means(hit, hit, hit.judge)).execute(episode, each)

    began = time.monotonic()
    with small_disk(folder / "full"):
        await run_rollouts(plan, journal, Place(execute), Nobody(), None, asyncio.Event())
    seconds = time.monotonic() - began
    results = {_key(each): each for each in journal.attempts(episodes * _PATIENCE.attempts)}
    given_up = journal.ended() - sum(each.reward is not None for each in results.values())
    journal.close()
    await sandboxes.close()
    judged = {session for session, each in results.items() if each.reward is not None}
    return Outcome(results, await _settled(store, judged), seconds, given_up)


class Nobody:
    """Watches nothing."""

    def began(self, episode: Episode) -> None: ...

    def ended(self, result: EpisodeResult, *, again: bool) -> None: ...


async def _settled(store: Path, judged: set[str]) -> dict[str, float]:
    """Return the last reward of each session that is not void, once the judged ones have theirs, or after a while."""
    deadline, found = time.monotonic() + 30.0, dict[str, float]()
    while time.monotonic() < deadline:
        with closing(sqlite3.connect(store)) as database:
            rows = database.execute("SELECT record FROM rewards ORDER BY sequence").fetchall()
        rewards = [_decoder.decode(row) for (row,) in rows]
        found = {each.session_id: each.value for each in rewards if not each.void}
        if judged <= found.keys():
            break
        await asyncio.sleep(0.2)
    await asyncio.sleep(1.0)  # for one too many
    return found


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


def _kill(pid: int) -> None:
    """Kill a sandbox with all that runs in it, as the kernel does where memory is short."""
    process = psutil.Process(pid)
    for each in [*process.children(recursive=True), process]:
        with suppress(psutil.NoSuchProcess):
            each.kill()


def _write_tests(folder: Path) -> None:
    for name, script in (("passing", _PASSES), ("crashing", _CRASHES)):
        (folder / name).mkdir()
        (folder / name / "test.sh").write_text(f"#!/bin/sh\n{script}")


@contextmanager
def small_disk(place: Path) -> Iterator[None]:
    """Mount a disk with very little room."""
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={_DISK_BYTES}", "tmpfs", str(place)], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", str(place)], check=True)


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with running_service(folder / "service", {"ONWARD_LEARNER__ENABLED": "false"}) as urls:
            outcome = asyncio.run(
                run(urls[0] + "/v1", folder / "service" / "store.db", folder, folder / "roots", _EPISODES)
            )
    judged = sum(each.reward is not None for each in outcome.results.values())
    hit = sum(outcome.hit.values())
    report(
        "planted_failures",
        [
            Row("episodes", _EPISODES, "episodes"),
            Row("attempts that were hit", hit, f"attempts: {dict(outcome.hit)}"),
            Row.at_most("failures with a reward, in journal and store", outcome.zeros, "", "none", outcome.zeros, 0),
            Row.at_most("failures that are not named", len(outcome.unnamed), "", "none", len(outcome.unnamed), 0),
            Row.at_most(
                "judged episodes whose reward is lost or doubled", outcome.missing, "", "none", outcome.missing, 0
            ),
            Row("judged", judged, "episodes"),
            Row("given up", outcome.given_up, "episodes"),
            Row("rate", 60 * len(outcome.results) / outcome.seconds, "attempts a minute"),
        ],
    )


if __name__ == "__main__":
    main()
