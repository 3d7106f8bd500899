"""The hot swap, as a machine of steps: what is done in each, and what a failure there leads to.

Requests wait at the engine from `pause` to `resume`; what ran goes on under the new weights, prefilled anew. The digest
of what is loaded is compared *before* `resume`, where the engine can give one that can be computed from the files (a
CPU engine does); else the probe, right after it, is the first to know.
"""

from collections.abc import Callable
from enum import StrEnum

from core.errors import WeightsError
from core.ids import PolicyRef
from serving.engines.sglang.admin import Admin
from serving.engines.sglang.checksums import covers, disagreement
from serving.engines.sglang.verified_versions import VerifiedVersion


class Step(StrEnum):
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


NEXT: dict[Step, tuple[Step, ...]] = {
    Step.PAUSE: (Step.LOAD, Step.RELOAD),
    Step.LOAD: (Step.COMPARE, Step.RELOAD),
    Step.COMPARE: (Step.FLUSH, Step.RELOAD),
    Step.FLUSH: (Step.RESUME, Step.RELOAD),
    Step.RESUME: (Step.PROBE, Step.RELOAD),
    Step.PROBE: (Step.SERVES, Step.RELOAD),
    Step.RELOAD: (Step.PAUSE, Step.RESTORE),
    Step.RESTORE: (Step.PAUSE, Step.RESTART),
    Step.RESTART: (Step.SERVES, Step.AWAY),
    Step.SERVES: (Step.PAUSE,),
    Step.AWAY: (Step.RESTART,),
}
"""The steps that may follow a step: the first after success, the second after failure."""


def drawing() -> str:
    """Return the state machine as a Mermaid state diagram."""
    arrows = []
    for step, after in NEXT.items():
        arrows.append(f"    {step} --> {after[0]}")
        arrows += [f"    {step} --> {other}: failed" for other in after[1:]]
    return "\n".join(["stateDiagram-v2", "    [*] --> restart", *arrows])


Observer = Callable[[Step, PolicyRef], None]


def nothing(_: Step, __: PolicyRef) -> None:
    """Nobody watches."""


class Swap:
    """Takes one engine from what it serves to a held version."""

    def __init__(self, admin: Admin, probe: Callable[[PolicyRef], str | None], observe: Observer) -> None:
        """`probe` tells what is wrong with what serves, or None. `observe` is told of each step before it is done."""
        self._admin, self._probe, self._observe = admin, probe, observe

    def to(self, held: VerifiedVersion) -> None:
        """Swap to a version.

        Raises WeightsError when the engine does not serve the version afterwards, and EngineUnavailable when it is
        unreachable; it may then be paused, or hold any weights: its label is no version's."""
        version = held.ref.version
        self._do(Step.PAUSE, version, self._admin.pause)
        self._do(Step.LOAD, version, lambda: self._admin.load(held.directory, str(version)))
        self._do(Step.COMPARE, version, lambda: self._compare(held))
        self._do(Step.FLUSH, version, self._admin.flush)
        self._do(Step.RESUME, version, self._admin.resume)
        self._confirm(version)

    def accept_started(self, held: VerifiedVersion) -> None:
        """Accept an engine that was started on this version and that nobody uses yet. Raises as `to` does."""
        self._do(Step.COMPARE, held.ref.version, lambda: self._compare(held))
        self._confirm(held.ref.version)

    def _confirm(self, version: PolicyRef) -> None:
        self._observe(Step.PROBE, version)
        wrong = self._probe(version)
        if wrong is not None:
            raise WeightsError(f"version {version}: what the engine serves is another: {wrong}")
        self._observe(Step.SERVES, version)

    def _compare(self, held: VerifiedVersion) -> None:
        loaded = self._admin.checksums()
        if loaded is None:
            return  # it gives none: the probe decides
        wrong = disagreement(loaded, held.checksums) if covers(loaded, held.checksums) else None
        if wrong is not None:
            raise WeightsError(f"version {held.ref.version}: the engine loaded another {wrong} than is in the file")

    def _do(self, step: Step, version: PolicyRef, work: Callable[[], object]) -> None:
        self._observe(step, version)
        work()
