"""Decides which published weights are kept: all of the newest, and fewer the older they are.

The learner can make others again while it has what it needs for that (`core.store.operators.version_files`)."""

import logging
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from types import MappingProxyType
from typing import Final

from core.ids import PolicyRef
from core.operations.fleet import Experiment
from core.ports import Clock, Store, Weights
from core.settings.serving import MOST_CERTIFIED, VersionSettings
from core.store.operators.version_files import Kept
from serving.releases.canaries.ratchet import steps_to
from serving.releases.view import ReleaseView

_MOST_DISCARDED: Final = 16  # at one release
_LOOKED_BACK: Final = 1000  # experiments in which what they certified is looked for
_PUBLISHING: Final = timedelta(days=1)  # from a number to its offer: a proposed version is tried first
_MINUTE_S, _HOUR_S, _DAY_S = 60.0, 3600.0, 86400.0
_GB: Final = 1e9
_AGAIN_S: Final = 10.0
logger = logging.getLogger(__name__)


class Keeping:
    """Deletes weights, and tells the store which are left."""

    def __init__(
        self, store: Store, weights: Weights, settings: VersionSettings, clock: Clock, *, cluster: str
    ) -> None:
        self._store, self._weights, self._settings, self._clock = store, weights, settings, clock
        self._cluster = cluster
        self._look_at_s: float | None = float("-inf")

    def look_once(self) -> None:
        """Tell the store what lies in the blobs, which nobody may have told it: an earlier build, or a restore."""
        if self._look_at_s is None or self._clock.monotonic() < self._look_at_s:
            return
        try:
            self._look()
            self._look_at_s = None
        except OSError as error:
            logger.warning("nobody knows which weights are kept, since the blobs cannot be reached: %s", error)
            self._look_at_s = self._clock.monotonic() + _AGAIN_S

    def _look(self) -> None:
        with self._store.look() as view:
            known = {kept.version for kept in view.files.kept()}
        there = self._weights.bases()  # what is published meanwhile is there, and tells of itself
        if known == there.keys():
            return
        with self._store.work() as work:
            for version in known - there.keys():
                work.files.drop(version)
            for version in there.keys() - known:
                if work.policies.get(version) is not None:
                    work.files.find(version)

    def tidy(self, view: ReleaseView, live: PolicyRef) -> None:
        """Let go what needs not be kept now that `live` serves, the newest of it first.

        Always kept are the anchor, the live and the previous version, those that canaries are held against, what an
        operator holds or asked for, what waits for a decision, also in a canary's lane, or is being published, the
        newest `keep`, what was proposed, since nobody can make it again, and what the deltas of any of these need. As
        far as there is room come what canaries certified, and then the rest by age."""
        now = self._clock.now()
        with self._store.look() as stored:
            kept = stored.files.kept()
            unpublished = stored.policies.allocated(now - _PUBLISHING)
            experiments = stored.experiments.newest(self._cluster, _LOOKED_BACK)
        held_against = (step.before for step in steps_to(live, view.past))
        asked = (order.version for order in view.orders)
        undecided = (each.version for each in (*view.candidates, *view.lane))
        waiting = (*view.switches.held, *asked, *undecided, *unpublished)
        newest = (each.version for each in kept[-self._settings.keep :])
        always: set[PolicyRef | None] = {view.anchor, live, view.live, view.previous, *held_against, *waiting, *newest}
        bases = self._weights.bases()
        always |= certified(kept, always, self._settings, experiments, bases)
        wanted = always | thinned(kept, always, self._settings, now, bases)
        wanted |= self._proposed(bases.keys() - wanted)
        wanted |= _with_bases(bases.keys() & wanted, bases)
        for version in sorted(bases.keys() - wanted, reverse=True)[:_MOST_DISCARDED]:
            with self._store.work() as work:
                work.files.drop(version)  # before it is gone: nobody shall be told that it can be served
            self._weights.discard(version)

    def _proposed(self, versions: Iterable[PolicyRef]) -> set[PolicyRef]:
        """Return those of the versions that were made elsewhere, and went live or still may."""
        with self._store.look() as stored:
            found = [stored.policies.get(version) for version in versions]
            made = [each.version for each in found if each is not None and each.is_proposed]
            return {version for version in made if stored.policies.state_of(version) not in ("rejected", "superseded")}


def certified(
    kept: Sequence[Kept],
    always: Iterable[PolicyRef | None],
    settings: VersionSettings,
    experiments: Iterable[Experiment],
    bases: Mapping[PolicyRef, PolicyRef | None] = MappingProxyType({}),
) -> set[PolicyRef]:
    """Return the versions, the newest hundred, that their canaries ended well for and nobody rejected since.

    As far as all takes more bytes than it may, the oldest go. `experiments`: the newest first."""
    room, found = _Room(kept, always, settings, bases), set[PolicyRef]()
    there = {each.version for each in kept if not each.is_rejected}
    promoted = dict.fromkeys(each.promoted for each in experiments)
    for version in [each for each in promoted if each in there][:MOST_CERTIFIED]:
        if not room.takes(version):
            break
        found.add(version)
    return found


class _Room:
    """The bytes that there are for others, in all, than those that are kept in any case.

    A version takes with it what its delta is made upon, as far as nothing before it did."""

    def __init__(
        self,
        kept: Sequence[Kept],
        always: Iterable[PolicyRef | None],
        settings: VersionSettings,
        bases: Mapping[PolicyRef, PolicyRef | None],
    ) -> None:
        self._sizes, self._bases = {each.version: each.size for each in kept}, bases
        self._taken = _with_bases(always, bases)
        most = float("inf") if settings.most_gb is None else settings.most_gb * _GB
        self._left = most - sum(self._sizes.get(version, 0) for version in self._taken)

    def takes(self, version: PolicyRef) -> bool:
        more = _with_bases([version], self._bases) - self._taken
        self._taken |= more
        self._left -= sum(self._sizes.get(each, 0) for each in more)
        return not more or self._left >= 0


def _with_bases(versions: Iterable[PolicyRef | None], bases: Mapping[PolicyRef, PolicyRef | None]) -> set[PolicyRef]:
    """Return the versions, and those that their deltas need."""
    found = set[PolicyRef]()
    for version in versions:
        base = version
        while base is not None and base not in found:
            found.add(base)
            base = bases.get(base)
    return found


def thinned(
    kept: Sequence[Kept],
    always: Iterable[PolicyRef | None],
    settings: VersionSettings,
    now: datetime,
    bases: Mapping[PolicyRef, PolicyRef | None] = MappingProxyType({}),
) -> set[PolicyRef]:
    """Return the versions that are kept for their age: all at first, then one a minute, an hour and a day.

    That is the first of each, so the one of an hour is one that was kept for its minute. As far as all takes more bytes
    than it may, the oldest go."""
    spans = (
        (settings.all_s, 0.0),
        (settings.by_minute_s, _MINUTE_S),
        (settings.by_hour_s, _HOUR_S),
        (settings.by_day_s, _DAY_S),
    )
    chosen: dict[tuple[float, float], Kept] = {}
    for each in kept:  # the oldest first
        age_s = (now - each.made_at).total_seconds()
        every_s = next((every_s for within_s, every_s in spans if age_s < within_s), None)
        if every_s is not None and not each.is_rejected:
            made_s = each.made_at.timestamp()
            chosen.setdefault((every_s, made_s // every_s if every_s else each.version.version), each)
    room, found = _Room(kept, always, settings, bases), set[PolicyRef]()
    for each in sorted(chosen.values(), reverse=True):
        if not room.takes(each.version):
            break
        found.add(each.version)
    return found
