"""The hot swap, as a machine of steps: what is done in each, and what a failure there leads to.

Requests wait at the engine from `pause` to `resume`; what ran goes on under the new weights, prefilled anew. What is
loaded is compared *before* `resume`, as far as the engine says anything that can be compared (proof.py); of the rest
the probe, right after it, is the first to know.
"""

from collections.abc import Callable
from enum import StrEnum

from core.errors import WeightsError
from core.ids import PolicyRef
from serving.engines.sglang.admin import Admin
from serving.engines.sglang.proof import LoadedWeights
from serving.engines.sglang.verified_versions import VerifiedVersion


class SwapStep(StrEnum):
    PAUSE = "pause"
    LOAD = "load"
    COMPARE = "compare"
    FLUSH = "flush"
    RESUME = "resume"
    PROBE = "probe"
    SERVES = "serves"
    RELOAD = "reload"  # the version from a directory that was made anew
    RESTORE = "restore"  # the last good version
    RESTART = "restart"  # the engine, on the last good version
    AWAY = "away"


NEXT: dict[SwapStep, tuple[SwapStep, ...]] = {
    SwapStep.PAUSE: (SwapStep.LOAD, SwapStep.RELOAD),
    SwapStep.LOAD: (SwapStep.COMPARE, SwapStep.RELOAD),
    SwapStep.COMPARE: (SwapStep.FLUSH, SwapStep.RELOAD),
    SwapStep.FLUSH: (SwapStep.RESUME, SwapStep.RELOAD),
    SwapStep.RESUME: (SwapStep.PROBE, SwapStep.RELOAD),
    SwapStep.PROBE: (SwapStep.SERVES, SwapStep.RELOAD),
    SwapStep.RELOAD: (SwapStep.PAUSE, SwapStep.RESTORE),
    SwapStep.RESTORE: (SwapStep.PAUSE, SwapStep.RESTART),
    SwapStep.RESTART: (SwapStep.SERVES, SwapStep.AWAY),
    SwapStep.SERVES: (SwapStep.PAUSE,),
    SwapStep.AWAY: (SwapStep.RESTART,),
}
"""The steps that may follow a step: the first after success, the second after failure."""


def table() -> str:
    """Return the state machine as a table in Markdown."""
    rows = [f"| {' | '.join([step, *after, ''][:3])} |" for step, after in NEXT.items()]
    return "\n".join(["| step | after success | after failure |", "|---|---|---|", *rows])


Observer = Callable[[SwapStep, PolicyRef], None]


def nothing(_: SwapStep, __: PolicyRef) -> None:
    """Nobody watches."""


class Swap:
    """Takes one engine from what it serves to a held version."""

    def __init__(
        self, admin: Admin, loaded: LoadedWeights, probe: Callable[[PolicyRef], str | None], observe: Observer
    ) -> None:
        """`probe` tells what is wrong with what serves, or None. `observe` is told of each step before it is done."""
        self._admin, self._loaded, self._probe, self._observe = admin, loaded, probe, observe

    def to(self, held: VerifiedVersion) -> None:
        """Swap to a version.

        Raises WeightsError when the engine does not serve the version afterwards, and EngineUnavailable when it is
        unreachable; it may then be paused, or hold any weights: its label is no version's."""
        version = held.ref.version
        self._do(SwapStep.PAUSE, version, self._admin.pause)
        self._do(SwapStep.LOAD, version, lambda: self._admin.load(held.directory, str(version), held.size))
        self._do(SwapStep.COMPARE, version, lambda: self._loaded.check(held))
        self._do(SwapStep.FLUSH, version, self._admin.flush)
        self._do(SwapStep.RESUME, version, self._admin.resume)
        self._confirm(version)

    def accept_started(self, held: VerifiedVersion) -> None:
        """Accept an engine that was started on this version and that nobody uses yet. Raises as `to` does."""
        self._do(SwapStep.COMPARE, held.ref.version, lambda: self._loaded.check(held))
        self._confirm(held.ref.version)

    def _confirm(self, version: PolicyRef) -> None:
        self._observe(SwapStep.PROBE, version)
        wrong = self._probe(version)
        if wrong is not None:
            raise WeightsError(f"version {version}: what the engine serves is another: {wrong}")
        self._loaded.confirm()
        self._observe(SwapStep.SERVES, version)

    def _do(self, step: SwapStep, version: PolicyRef, work: Callable[[], object]) -> None:
        self._observe(step, version)
        work()
