"""An agent's session from its first request to a release's gate: worked, mined, accepted over HTTP, and asked.

The service, the harness, the sandboxes and the gate are the real ones; the model alone is scripted."""

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import made_events
from api_harness import Service, serve, wait_for
from byte_renderer import CALL, END, ByteRenderer, call_ids, ids
from worked import Call, calling, endpoint_of

from core.clock import SystemClock
from core.events import GateVerdict, Topic
from core.ids import PolicyRef, base_ref
from core.ports import GenerateRequest, TokenChunk
from core.settings import ApiKey, EvalSettings
from environments.cases.prepared import prepared
from environments.harness.agent import Agent, HarnessSettings
from environments.harness.harness import Budget, HarnessRun
from environments.sandboxes.bubblewrap.adapter import Bubblewrap
from environments.tasks.opening import open_sandbox
from environments.tasks.task import Task
from onward.replays.suites.mining import DraftFilter, Mined, mine
from onward.wiring.evals.building import build_task_cases
from onward.wiring.foundation import open_foundation
from onward.wiring.suites.usable import unusable_in
from serving.evals.cases import Draft, load_suite, read_suite
from serving.evals.drafts.board import Board
from serving.releases.cases import CaseGate

LIVE, WORSE = base_ref(1), base_ref(2)
_CONTEXT = 100_000  # the scripted model's tokens are bytes
_KEYS = tuple(
    ApiKey(key=f"key-of-{name}", name=name, namespace="default", scopes=("admin",)) for name in ("ada", "bob")
)


class MinedTask:
    """A task of ours, and what a scripted agent does on it. `kept` keeps images; `bases` are what they stand upon."""

    def __init__(self, folder: Path, task: Path, calls: Sequence[Call], kept: Path, bases: Mapping[str, str]) -> None:
        self.suite, self.service = folder / "suite", folder / "service"
        self._task, self._calls, self._kept, self._bases = task, calls, kept, bases

    def work(self) -> HarnessRun:
        """Have the agent work on the task over HTTP, as a user's agent does, whose user then keeps what it did."""
        (task,) = asyncio.run(prepared([self._task], self._kept, self._bases))
        assert isinstance(task, Task), task
        with serve(self.service) as service:
            service.policy.context_length = _CONTEXT
            service.policy.scripts.extend(calling(call) for call in self._calls)
            done = asyncio.run(self._worked(service, task))
            assert done.ending == "done", done
            last = [service.turn(each) for each in done.inference_ids][-1]
            service.log.append_blocking(Topic.REWARDS, [made_events.reward_of(last, 1.0, last.received_at)])
        return done

    async def _worked(self, service: Service, task: Task) -> HarnessRun:
        agent = Agent(HarnessSettings(answer_tokens=2000, patience_seconds=5))
        endpoint = replace(endpoint_of(service), headers={"x-onward-environment": "production"})
        sandboxes = Bubblewrap(self._kept / "sandboxes")
        try:
            async with await open_sandbox(task, sandboxes) as sandbox:
                return await agent.work(task, sandbox, endpoint, Budget(context_tokens=_CONTEXT))
        finally:
            await sandboxes.close()

    def mined(self, *, knows_the_task: bool = True) -> tuple[Mined, list[Draft]]:
        tasks = (self._task,) if knows_the_task else ()
        made = mine(self.service, self.suite, DraftFilter(tasks=tasks, kept=self._kept, images=self._bases), {})
        return made, list(read_suite(self.suite).drafts.values())

    def accepted(self, name: str) -> list[int]:
        """Have two operators accept a draft at once; return what each was answered."""
        with closing(open_foundation(self.service)) as source:
            board = Board((self.suite,), SystemClock(), lambda _turn, _since: None, unusable_in(source))
            with serve(self.service.with_name("console"), keys=_KEYS, drafts=board) as service:
                headers = [{"Authorization": f"Bearer {each.key}"} for each in _KEYS]
                where = {"suite": str(self.suite)}
                shown = service.http.get(f"/v1/drafts/{name}", params=where, headers=headers[0]).json()
                body = where | {"seen": shown["seen"]}
                with ThreadPoolExecutor(2) as people:
                    answers = people.map(lambda who: service.post(f"/v1/drafts/{name}/accept", body, **who), headers)
                    return sorted(answer.status_code for answer in answers)

    def judged(self) -> GateVerdict:
        """Have a release's gate ask the suite of a version that does what the agent did, and of one that only talks."""
        loaded = load_suite(self.suite)
        tasks = build_task_cases(loaded, self._kept, self._bases, allowed=True, asked_by="release.evals.suite")
        assert tasks is not None
        settings = EvalSettings(suite=self.suite, margin=0.6, allow_commands=True, concurrency=2)
        versions: Any = _Versions(self._calls)
        gate = CaseGate(loaded, lambda: nullcontext(versions), ByteRenderer(), settings, SystemClock(), tasks.opened)
        view: Any = SimpleNamespace(live=LIVE, replicas=[SimpleNamespace(pinnable=(LIVE, WORSE))])
        policy: Any = SimpleNamespace(version=WORSE, verdict=None)
        try:
            verdict: GateVerdict = wait_for(lambda: gate.verdict(view, policy), "the verdict")
        finally:
            gate.stop()
        return verdict


class _Versions:
    """An engine with two versions: the live one makes the calls, the other one talks of them."""

    context_length = _CONTEXT

    def __init__(self, calls: Sequence[Call]) -> None:
        self._calls = calls

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[TokenChunk, None]:
        version: PolicyRef | None = request.version
        assert version is not None
        await asyncio.sleep(0)
        done = request.prompt_token_ids.count(CALL)
        said = call_ids(*self._calls[done]) if version == LIVE else ids("I would change it.")
        tokens = (*said, END)
        yield TokenChunk(token_ids=tokens, logprobs=(-1.0,) * len(tokens), version=version, finish_reason="stop")
