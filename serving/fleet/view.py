"""Reads the fleet from the store, again and again, so that requests need not."""

from collections import Counter
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import get_args

from core import telemetry
from core.errors import Fenced, Unavailable
from core.operations.fleet import ReplicaState, ReplicaStatus, ReplicaTarget
from core.ports import Clock, Store
from core.stages.stage import OK, Stage
from serving.fleet.snapshot import FleetSnapshot, Replica

_GONE = "gone"
_WOKEN_S = 1.0  # how often hearts are listened to, where the store tells of all else


class FleetView(Stage):
    """Any thread may read `snapshot`. While the store is unavailable the last one stands."""

    def __init__(
        self, store: Store, cluster: str, clock: Clock, heartbeat_timeout_s: float, *, period_s: float = 0.1
    ) -> None:
        """Look at the fleet. Raises StoreUnavailable."""
        super().__init__()
        self._store, self._cluster, self._clock = store, cluster, clock
        self._heartbeat_timeout = timedelta(seconds=heartbeat_timeout_s)
        self._period_s = period_s
        self._snapshot = FleetSnapshot()
        self._store_fault: str | None = None
        self.on_look: Callable[[], None] | None = None  # called after each look, from its thread
        store.wake(self.woken)
        self.refresh()

    @property
    def snapshot(self) -> FleetSnapshot:
        return self._snapshot

    @property
    def store_state(self) -> str:
        """`ok`, or what is wrong with the store, by the last look."""
        return OK if self._store_fault is None else f"degraded: {self._store_fault}"

    def tick(self) -> float:
        self.refresh()
        self._store_fault = None
        if self.on_look is not None:
            self.on_look()
        return _WOKEN_S if self._store.wakes else self._period_s

    def recover(self, error: Unavailable | Fenced) -> None:
        """Leave the fleet as it was, as far as anybody knows."""
        self._store_fault = str(error)

    def refresh(self) -> bool:
        """Return whether anything is new. Raises StoreUnavailable."""
        with self._store.look() as view:
            statuses = view.fleet.statuses(self._cluster)
            targets = view.fleet.targets(self._cluster)
            live = view.releases.live(self._cluster)
        oldest = self._clock.now() - self._heartbeat_timeout
        there = [status for status in statuses if status.heartbeat_at >= oldest]
        _count(there, len(statuses) - len(there))
        found = FleetSnapshot(live=live, replicas=tuple(_replica(status, targets) for status in there))
        is_new, self._snapshot = found != self._snapshot, found
        return is_new


def _replica(status: ReplicaStatus, targets: Mapping[str, ReplicaTarget]) -> Replica:
    target = targets.get(status.name)
    return Replica(
        name=status.name,
        url=status.url,
        lane="live" if target is None else target.lane,
        state=status.state,
        serving=status.serving,
        pinnable=frozenset(status.pinnable),
        avoid=frozenset() if target is None else frozenset(target.avoid),
        llguidance=status.llguidance,
        names=status.names,
    )


def _count(there: list[ReplicaStatus], gone: int) -> None:
    counts = Counter[str](status.state for status in there)
    for state in get_args(ReplicaState):
        telemetry.REPLICAS.labels(state).set(counts[state])
    telemetry.REPLICAS.labels(_GONE).set(gone)
