"""The release controller: the one place that decides which version of each policy serves whom.

It decides on the store alone, and its words are targets in the store, which the engines' hosts follow: so it may end at
any point, and the next one goes on. A version is said to be live when engines serve it, and not before. What it decides
is in `serving.releases.decisions`; policies know nothing of each other, and share the chain and what is read of the
log.
"""

import logging
from collections.abc import Callable, Collection, Mapping
from contextlib import nullcontext
from typing import NamedTuple

from core.errors import Conflict
from core.ids import PolicyName, PolicyRef
from core.ports import Clock, EventLog, Store, Weights
from core.settings import PolicySettings, ReleaseSettings, ServingSettings
from core.settings.policies import EMPTY
from core.stages.stage import Stage
from serving.releases.cases import CaseGate
from serving.releases.chain import Chain
from serving.releases.decisions import Decisions, Shared
from serving.releases.listening import Listening
from serving.releases.view import ReleaseView, look, oldest_heartbeat

_LOOK_S = 0.2
_WOKEN_S = 0.5  # where the store tells of changes: how often the log is asked what became of turns
_STANDS_BY_S = 1.0
_KNOWN_S = 5.0  # how long the view of a policy is good in whose affairs nothing stirs
logger = logging.getLogger(__name__)


class _Known(NamedTuple):
    """The view of a policy, and by what it is seen whether it still holds."""

    view: ReleaseView
    sign: object
    at_s: float


class ReleaseController(Stage):
    """Woken when a host's status has changed."""

    def __init__(
        self,
        log: EventLog,
        store: Store,
        weights: Weights,
        serving: ServingSettings,
        settings: ReleaseSettings,
        vocabulary: int,
        clock: Clock,
        holder: str,
        on_change: Callable[[], None] | None = None,
        cases: CaseGate | None = None,
        policies: Mapping[str, PolicySettings] = EMPTY,
        needed: Callable[[PolicyName], Collection[PolicyRef]] | None = lambda policy: (),
    ) -> None:
        """Make a controller of the base policy and these.

        `holder` names this process in the lease; `on_change` is called when targets have changed. Without `cases`
        candidates are not asked any. `needed` returns the versions of a policy that others need, and raises Unavailable
        while that cannot be known; without it no weights are discarded."""
        super().__init__()
        self._store, self._clock, self._cases, self._policies = store, clock, cases, policies
        store.wake(self.woken)
        self._settings, self._cluster = settings, serving.cluster
        self._timeout_s = serving.fleet.heartbeat_timeout_s
        self._chain = Chain(store, log, self._cluster, clock, holder, settings.lease_s)
        self._listening = Listening(log, store, self._cluster, settings, clock, policies)
        shared = Shared(store, weights, self._chain, serving, settings, vocabulary, clock, cases, on_change, needed)
        canaries = self._listening.canaries
        self._decisions = {policy: Decisions(shared, policy, canary) for policy, canary in canaries.items()}
        self._known: dict[PolicyName, _Known] = {}

    def tick(self) -> float:
        """Look, decide, write."""
        if not self._chain.lead():
            self._listening.close()  # who leads reads what canaries are judged by
            self._ask_nothing()
            self._known.clear()
            return min(_STANDS_BY_S, self._settings.lease_s / 3)
        views = self._look()
        more = False
        if views:
            with nullcontext() if self._listening.is_open else self._chain.kept():  # who begins to may need long
                more = self._listening.listen(views)
        if not self._decide(views):
            return _LOOK_S
        told = self._chain.announce()
        if told or more:
            return 0.0
        return _WOKEN_S if self._store.wakes and not any(map(_stirs, views.values())) else _LOOK_S

    def close(self) -> None:
        self._ask_nothing()
        self._listening.close()
        self._chain.resign()

    def _decide(self, views: Mapping[PolicyName, ReleaseView]) -> bool:
        """Decide on each policy; return whether nobody has written in between."""
        fine, written = True, self._chain.written
        for policy, view in views.items():
            current: ReleaseView | None = view
            if self._chain.written != written:  # for another policy: the chain has grown
                current = self._look_at(policy)
            try:
                if current is not None:
                    self._decisions[policy].decide(current)
            except Conflict as error:  # nothing was written: look again
                logger.warning("releases: %s", error)
                self._known.pop(policy, None)
                fine = False
        return fine

    def _look(self) -> dict[PolicyName, ReleaseView]:
        """Return the views of the policies that have a first version; of idle ones that of before, while it holds."""
        if len(self._decisions) == 1:
            found = {policy: self._look_at(policy) for policy in self._decisions}
            return {policy: view for policy, view in found.items() if view is not None}
        with self._store.look() as stored:
            oldest = oldest_heartbeat(self._clock.now(), self._timeout_s)
            signs = stored.fleet.signs(self._cluster, oldest, tuple(self._decisions))
        now_s, views = self._clock.monotonic(), {}
        for policy in self._decisions:
            known, sign = self._known.get(policy), signs.get(policy)
            if known is None or known.sign != sign or now_s - known.at_s > _KNOWN_S or _stirs(known.view):
                view = self._look_at(policy)
                if view is None:
                    continue
                known = self._known[policy] = _Known(view, sign, now_s)
            views[policy] = known.view
        return views

    def _look_at(self, policy: PolicyName) -> ReleaseView | None:
        return look(self._store, self._cluster, self._clock.now(), self._timeout_s, policy, self._policies)

    def _ask_nothing(self) -> None:
        if self._cases is not None:
            self._cases.stop()


def _stirs(view: ReleaseView) -> bool:
    return bool(view.candidates or view.canary or view.experiment or view.orders)
