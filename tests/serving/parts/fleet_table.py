"""A fleet's rows as hosts and the controller write them, written by hand, and a view on them."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
from ready_stores import open_ready

from core.clock import ManualClock
from core.events import Release
from core.ids import PolicyRef, base_ref
from core.operations.fleet import Lane, ReplicaState, ReplicaStatus, ReplicaTarget
from core.store import SqlStore
from serving.fleet.view import FleetView

LIVE = base_ref(3)
NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
TIMEOUT_S = 5.0


class FleetTable:
    """A table of the fleet, with a clock that the test moves."""

    def __init__(self, path: Path) -> None:
        self.clock = ManualClock(NOW)
        self.store: SqlStore = open_ready(path)
        self.view = FleetView(self.store, "local", self.clock, TIMEOUT_S, period_s=0.01)

    def beat(self, name: str, state: ReplicaState = "ready", **changes: Any) -> None:
        status = ReplicaStatus(
            name=name,
            cluster="local",
            url=f"http://{name}",
            state=state,
            serving=LIVE,
            pinnable=(LIVE,),
            heartbeat_at=self.clock.now(),
        )
        with self.store.work() as work:
            work.fleet.put_status(msgspec.structs.replace(status, **changes))

    def want(self, name: str, lane: Lane, serve: PolicyRef, avoid: tuple[PolicyRef, ...] = ()) -> None:
        target = ReplicaTarget(name=name, lane=lane, serve=serve, hold=(serve,), avoid=avoid)
        with self.store.work() as work:
            work.fleet.put_target("local", target)

    def release(self, version: PolicyRef) -> None:
        release = Release(version=version, cluster="local", state="live", why="", by="gate", at=self.clock.now())
        with self.store.work() as work:
            while work.policies.allocate(self.clock.now()) < version:
                pass
            work.releases.put(release)

    def seen(self) -> list[str]:
        return [each.name for each in self.view.snapshot.replicas]
