"""The gate of eval cases, after the sanity gate: it asks a suite of a candidate and of the live version.

The candidate answers where a canary would, before any user is assigned to it. Answers that were lost with an engine are
asked for again once one is back. If the suite's time runs out, the candidate is held: unanswered cases never pass.
Those that can be asked of no version are set aside after three measurements.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, nullcontext
from functools import partial
from typing import Any, TypeVar

import msgspec

from core.errors import Unavailable
from core.events import GateVerdict, PolicyVersion, Sampling
from core.ids import PolicyRef
from core.ports import Clock, Policy, Renderer
from core.settings import EvalSettings
from serving.evals.cases import Case, Suite
from serving.evals.engine_answers import EngineAnswers, EngineLost, EngineTalk, Message, Said
from serving.evals.gate import GateBounds, GateDecision, evaluate
from serving.evals.run import Answerer, OpenTasks, Solver, SolverOf, SuiteLimits
from serving.evals.set_aside import SetAside
from serving.evals.verdicts import of_cases, together
from serving.releases.view import ReleaseView

T = TypeVar("T")
_AGAIN_S = 0.2
logger = logging.getLogger(__name__)

OpenPolicy = Callable[[], AbstractAsyncContextManager[Policy]]
"""Who is asked, for one event loop."""


class CaseGate:
    """The gate of eval cases: used by the controller's thread, it asks in another.

    It runs one measurement at a time: of the candidate and the live version that it was last asked about."""

    def __init__(
        self,
        suite: Suite,
        open_policy: OpenPolicy,
        renderer: Renderer,
        settings: EvalSettings,
        clock: Clock,
        open_tasks: OpenTasks | None = None,
    ) -> None:
        """`open_tasks` is needed for a suite with tasks, where these are allowed."""
        self._aside, self._open_policy, self._renderer = SetAside(suite), open_policy, renderer
        self._open_tasks = open_tasks
        self._settings, self._clock = settings, clock
        self._between: tuple[PolicyRef, PolicyRef] | None = None  # candidate and live
        self._until_s = float("-inf")
        self._asking: _Asking | None = None

    @staticmethod
    def has_judged(view: ReleaseView, candidate: PolicyVersion) -> bool:
        """Beside what is live."""
        return candidate.verdict is not None and candidate.verdict.against == view.live

    def verdict(self, view: ReleaseView, candidate: PolicyVersion) -> GateVerdict | None:
        """Return the verdict; None while cases run, or wait for an engine."""
        between = candidate.version, view.live
        if between != self._between:
            self.stop()
            self._between, self._until_s = between, self._clock.monotonic() + self._settings.budget_s
        found = self._found(view)
        if found is None:
            return None
        cases = of_cases(found, view.live)
        if candidate.verdict is None or not candidate.verdict.proposed:
            return msgspec.structs.replace(cases, proposed=False)
        return together([*([candidate.verdict] if candidate.verdict.action != "ask" else []), cases])

    def stop(self) -> None:
        """Nobody waits for an answer any more."""
        if self._asking is not None:
            self._asking.end()
        self._asking = self._between = None

    def _found(self, view: ReleaseView) -> GateDecision | None:
        assert self._between is not None
        if self._asking is not None:
            try:
                return self._asking.found()
            except Unavailable as error:
                logger.warning("the cases are asked anew: %s", error)
                self._asking.end()
                self._asking = None
        left_s = self._until_s - self._clock.monotonic()
        if left_s <= 0:
            return GateDecision(
                "hold", f"within {self._settings.budget_s:g} s no engine could be spared by users for it"
            )
        if all(any(version in replica.pinnable for replica in view.replicas) for version in self._between):
            self._asking = _Asking(self._ask(*self._between, left_s))
        return None

    async def _ask(self, candidate: PolicyRef, live: PolicyRef, budget_s: float) -> GateDecision:
        until_s = asyncio.get_running_loop().time() + budget_s
        limits = SuiteLimits(budget_s, self._settings.concurrency, self._settings.allow_commands)
        versions, bounds = (candidate, live), GateBounds(margin=self._settings.margin)
        suite = self._aside.asked()
        async with self._open_policy() as policy, self._solving(suite) as solver_of:
            answers = [_patient(EngineAnswers(policy, self._renderer, version), until_s) for version in versions]
            solvers = [self._solver(solver_of, policy, version, until_s) for version in versions]
            sides = (solvers[0], solvers[1])
            return self._aside.noted(await evaluate(suite, answers[0], answers[1], limits, bounds, sides))

    def _solving(self, suite: Suite) -> AbstractAsyncContextManager[SolverOf | None]:
        is_needed = suite.tasks and self._settings.allow_commands
        if self._open_tasks is None or not is_needed:
            return nullcontext(None)
        return self._open_tasks(self._settings.concurrency)

    def _solver(self, solver_of: SolverOf | None, policy: Policy, version: PolicyRef, until_s: float) -> Solver | None:
        if solver_of is None:
            return None
        return solver_of(lambda: _PatientTalk(policy, self._renderer, version, until_s), policy.context_length)


class _PatientTalk(EngineTalk):
    """A conversation in which an answer that was lost is asked for again: what was said before it still holds."""

    def __init__(self, policy: Policy, renderer: Renderer, version: PolicyRef, until_s: float) -> None:
        super().__init__(policy, renderer, version)
        self._until_s = until_s

    async def say(
        self, messages: Sequence[Message], tools: Sequence[Message], sampling: Sampling, *, may_call: bool = True
    ) -> Said:
        ask = partial(super().say, messages, tools, sampling, may_call=may_call)
        return await _again(ask, self._until_s)


def _patient(answer: Answerer, until_s: float) -> Answerer:
    """Asks again what was lost, while there is time; then it says how it was lost."""

    async def ask(case: Case) -> str:
        return await _again(partial(answer, case), until_s)

    return ask


async def _again(ask: Callable[[], Awaitable[T]], until_s: float) -> T:
    while True:
        try:
            return await ask()
        except EngineLost:
            if asyncio.get_running_loop().time() + 2 * _AGAIN_S > until_s:
                raise
            await asyncio.sleep(_AGAIN_S)


class _Asking:
    """A measurement, in a thread with an event loop of its own."""

    def __init__(self, measurement: Coroutine[Any, Any, GateDecision]) -> None:
        self._runner = asyncio.Runner(loop_factory=asyncio.new_event_loop)
        loop = self._runner.get_loop()
        self._task = loop.create_task(measurement)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="cases")
        self._future: Future[GateDecision] = self._thread.submit(loop.run_until_complete, self._task)

    def found(self) -> GateDecision | None:
        """Return the decision, None until there is one."""
        return self._future.result() if self._future.done() else None

    def end(self) -> None:
        """Stop, and wait until its connections are closed."""
        self._runner.get_loop().call_soon_threadsafe(self._task.cancel)
        self._thread.shutdown()
        self._runner.close()
