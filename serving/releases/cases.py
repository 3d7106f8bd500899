"""Cases, between the sanity gate and users: a suite, asked of a candidate and of the live version at the same time.

The candidate is asked where a canary would be, before anybody is assigned to it. What is lost with an engine is asked
again once one is back; what the suite's time does not suffice for holds the candidate: nothing passes by silence.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager
from typing import Any

import msgspec

from core.errors import Unavailable
from core.events import GateVerdict, PolicyVersion
from core.ids import PolicyName, PolicyRef
from core.ports import Clock, Policy, Renderer
from core.settings import EvalSettings
from serving.evals.cases import Case, Suite
from serving.evals.engine_answers import EngineAnswers, Lost
from serving.evals.gate import Bounds, GateDecision, evaluate
from serving.evals.run import Answerer, Limits, OpenAttempts, opened
from serving.evals.verdicts import of_cases, together
from serving.releases.view import ReleaseView

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
        open_attempts: OpenAttempts | None = None,
    ) -> None:
        """Make a gate. Without `open_attempts`, tasks of the suite cannot run, and so hold each candidate."""
        self._suite, self._open_policy, self._renderer = suite, open_policy, renderer
        self._open_attempts = open_attempts
        self._settings, self._clock = settings, clock
        self._between: tuple[PolicyRef, PolicyRef] | None = None  # candidate and live
        self._until_s = float("-inf")
        self._asking: _Asking | None = None

    @staticmethod
    def has_judged(view: ReleaseView, candidate: PolicyVersion) -> bool:
        """Beside what is live."""
        return candidate.verdict is not None and candidate.verdict.against == view.live

    def verdict(self, view: ReleaseView, candidate: PolicyVersion) -> GateVerdict | None:
        """Return the verdict; None while cases run, or wait for an engine, or for those of another policy."""
        between = candidate.version, view.live
        if self._between is not None and self._between[0].policy != candidate.version.policy:
            return None
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

    def stop_for(self, policy: PolicyName) -> None:
        """Nobody waits for an answer about this policy any more."""
        if self._between is not None and self._between[0].policy == policy:
            self.stop()

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
        limits = Limits(budget_s, self._settings.concurrency, self._settings.allow_commands)
        async with self._open_policy() as policy:
            sides = [_patient(EngineAnswers(policy, self._renderer, version), until_s) for version in (candidate, live)]
            bounds = Bounds(margin=self._settings.margin)
            async with opened(self._open_attempts, self._suite, policy, candidate, live) as attempts:
                return await evaluate(self._suite, sides[0], sides[1], limits, bounds, attempts)


def _patient(answer: Answerer, until_s: float) -> Answerer:
    """Asks again what was lost, while there is time; then it says how it was lost."""

    async def ask(case: Case) -> str:
        while True:
            try:
                return await answer(case)
            except Lost:
                if asyncio.get_running_loop().time() + 2 * _AGAIN_S > until_s:
                    raise
                await asyncio.sleep(_AGAIN_S)

    return ask


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
