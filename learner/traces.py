"""The end of turns' traces: the update that learned from them, its version published, and that version live."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final, NamedTuple

from core.events import PolicyVersion, Release
from core.ids import InferenceId, PolicyRef
from core.ports import Clock
from core.tracing import TraceSpan, is_on, record, root_of, root_of_version, trace, trace_version
from learner.sequences.scored import ScoredTurn
from learner.timing import SECONDS

_MOST_WAITING: Final = 256  # versions that may still go live
_MOST_LINKS: Final = 128  # to turns; as many as collectors keep of a span


class _Waiting(NamedTuple):
    parent: PolicyRef | None
    turns: tuple[InferenceId, ...]
    published_at: datetime


class VersionTraces:
    """The spans of versions, and of the turns that they learned from."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._waiting: dict[PolicyRef, _Waiting] = {}

    def made(self, policy: PolicyVersion, batch: Sequence[ScoredTurn]) -> None:
        """Tell of a version that was published just now."""
        if not is_on():
            return
        version, made_at, now = policy.version, policy.created_at, self._clock.now()
        began_at = made_at - timedelta(seconds=policy.metrics.get(f"{SECONDS}updating", 0.0))
        turns = tuple(scored.inference_id for scored in batch)
        self._waiting[version] = _Waiting(policy.parent, turns, now)
        while len(self._waiting) > _MOST_WAITING:
            del self._waiting[next(iter(self._waiting))]
        root, name = root_of_version(version), str(version)
        links = tuple(place for place in map(root_of, turns[:_MOST_LINKS]) if place is not None)
        about = {"onward.version": name, "onward.turns": policy.turns}
        record(TraceSpan(root, None, f"version of {version.policy}", began_at, now, about, links))
        trace_version(version, "update", began_at, made_at)
        trace_version(version, "publish", made_at, now)
        for turn in turns:
            trace(turn, "update", began_at, made_at, name, (root,), {"onward.version": name})
            trace(turn, "publish", made_at, now, name, (root,), {"onward.version": name})

    def follow(self, release: Release) -> None:
        """Tell of a version that went live: with it all turns of its line serve that none before it had."""
        if release.state != "live":
            return
        live, version = release.version, self._waiting.pop(release.version, None)
        about = {"onward.version": str(live)}
        while version is not None:
            for turn in version.turns:
                trace(turn, "live", version.published_at, release.at, str(live), (root_of_version(live),), about)
            version = None if version.parent is None else self._waiting.pop(version.parent, None)
