"""The canary: begins and ends an experiment, and judges it by what the log says of its turns."""

import secrets
import threading
from dataclasses import dataclass
from typing import Literal

import msgspec
from sqlalchemy import Connection

from core.fleet import CLUSTER, Experiment
from core.ids import Version
from core.ports import Clock, EventLog, Store
from core.settings import ReleaseSettings
from core.store import fleet
from serving.releases.view import ReleaseView

_TICK_S = 0.05


@dataclass(frozen=True)
class Verdict:
    action: Literal["promote", "rollback"]
    why: str
    figures: dict[str, float]


class Canary:
    """Used by the controller's thread; `wake` by any."""

    def __init__(self, log: EventLog, store: Store, settings: ReleaseSettings, clock: Clock) -> None:
        self._log, self._store, self._settings, self._clock = log, store, settings, clock
        self._wakened = threading.Event()

    def rest(self, timeout_s: float) -> None:
        self._wakened.wait(min(timeout_s, _TICK_S))
        self._wakened.clear()

    def wake(self) -> None:
        self._wakened.set()

    def listen(self, view: ReleaseView, timeout_s: float) -> None:
        self.rest(timeout_s)

    def wanted(self, view: ReleaseView) -> bool:
        match self._settings.canary:
            case "on":
                return True
            case "off":
                return False
        return sum(not replica.holds_many for replica in view.replicas) > 1

    def begin(self, connection: Connection, view: ReleaseView, canary: Version) -> None:
        fleet.put_experiment(
            connection,
            Experiment(
                experiment_id=f"canary-{canary}-{secrets.token_hex(4)}",
                cluster=CLUSTER,
                canary=canary,
                control=view.live,
                share=self._settings.canary_share,
                salt=secrets.token_hex(16),
                started_at=self._clock.now(),
            ),
        )

    def end(
        self, connection: Connection, view: ReleaseView, verdict: Literal["promote", "rollback"], reason: Verdict
    ) -> None:
        if view.experiment is None:
            return
        ended = msgspec.structs.replace(
            view.experiment, ended_at=self._clock.now(), verdict=verdict, why=reason.why, figures=reason.figures
        )
        fleet.put_experiment(connection, ended)

    def verdict(self, view: ReleaseView) -> Verdict | None:
        return None

    def close(self) -> None:
        pass
