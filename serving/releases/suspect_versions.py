"""Versions whose output for a request was not finite: they are probed before anything is done.

One user's prompt or settings must not take a good version from everybody, so such a turn does not count against the
version. It raises a doubt, which the engines get with their targets; they compute the version's probe, and only a
version that fails it on every engine that has it is rolled back.
"""

import logging

from core.ids import PolicyRef
from core.ports import Clock
from serving.releases.view import ReleaseView

_AGAIN_S = (
    10.0  # between two probes of one version: who sends such prompts all day does not keep engines busy with them
)
logger = logging.getLogger(__name__)


class Doubts:
    """Used by the controller's thread."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._open: set[PolicyRef] = set()
        self._settled_s: dict[PolicyRef, float] = {}

    def raised(self, version: PolicyRef) -> None:
        """Note that a turn raised a doubt about a version."""
        self._open.add(version)

    def to_probe(self, view: ReleaseView) -> frozenset[PolicyRef]:
        """Return the doubted versions that serve, or are tried, now."""
        serving = {view.live, *(() if view.canary is None else (view.canary.version,))}
        self._open &= serving
        now_s = self._clock.monotonic()
        return frozenset(v for v in self._open if now_s - self._settled_s.get(v, float("-inf")) >= _AGAIN_S)

    def confirmed(self, view: ReleaseView, version: PolicyRef) -> str | None:
        """Return what is wrong with a doubted version by all engines that have it.

        None while one has not answered, or when one finds nothing wrong: then the doubt is over."""
        if version not in self.to_probe(view):
            return None
        asked = [r for r in view.replicas if r.name in view.targets and version in view.targets[r.name].doubt]
        having = [r for r in asked if version in r.pinnable]
        if not having or not all(version in r.probed for r in having):
            return None
        self._open.discard(version)
        self._settled_s[version] = self._clock.monotonic()
        found = [r.probed[version] for r in having]
        if all(found):
            return found[0]
        fine = found.count("")
        logger.info("version %s was doubted: %d of %d engines find its probe well", version, fine, len(found))
        return None
