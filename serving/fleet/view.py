"""Reads the fleet from the store, again and again, so that requests need not."""

import logging
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import get_args

from core import telemetry
from core.errors import StoreUnavailable
from core.operations.fleet import ReplicaState, ReplicaStatus, ReplicaTarget
from core.ports import Clock, Store
from serving.fleet.snapshot import FleetSnapshot, Replica

_GONE = "gone"
logger = logging.getLogger(__name__)


class FleetView:
    """A stage: one thread steps it; any may read `snapshot`. While the store is away the last one stands."""

    def __init__(
        self, store: Store, cluster: str, clock: Clock, heartbeat_timeout_s: float, *, period_s: float = 0.1
    ) -> None:
        """Look at the fleet. Raises StoreUnavailable."""
        self._store, self._cluster, self._clock = store, cluster, clock
        self._heartbeat_timeout = timedelta(seconds=heartbeat_timeout_s)
        self._period_s = period_s
        self._wakened = threading.Event()
        self._snapshot = FleetSnapshot()
        self._store_fault: str | None = None
        self.on_look: Callable[[], None] | None = None  # called from `step`'s thread after each look
        self.refresh()

    @property
    def snapshot(self) -> FleetSnapshot:
        return self._snapshot

    @property
    def store_state(self) -> str:
        """`ok`, or what is wrong with the store, by the last look."""
        return "ok" if self._store_fault is None else f"degraded: {self._store_fault}"

    def step(self, timeout_s: float) -> int:
        """Wait until it is time to look, and look; returns 1 when something is new."""
        self._wakened.wait(min(timeout_s, self._period_s))
        self._wakened.clear()
        try:
            is_new = self.refresh()
        except StoreUnavailable as error:
            if self._store_fault is None:  # once, not at every look
                logger.warning("the fleet is as it was: %s", error)
            self._store_fault = str(error)
            return 0
        self._store_fault = None
        if self.on_look is not None:
            self.on_look()
        return int(is_new)

    def wake(self) -> None:
        """Look now instead of at the next poll. From any thread."""
        self._wakened.set()

    def close(self) -> None:
        """Do nothing: no resource is held."""

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
    )


def _count(there: list[ReplicaStatus], gone: int) -> None:
    counts = Counter[str](status.state for status in there)
    for state in get_args(ReplicaState):
        telemetry.REPLICAS.labels(state).set(counts[state])
    telemetry.REPLICAS.labels(_GONE).set(gone)
