"""The notifier: tells targets of alarms that open and close, each change once, whoever raised the alarm.

The store says what was told, so a process that was killed goes on where it was. If it is killed after a target answered
and before this is noted, the same request is sent again with the same key. Each target has its own waits; one that
hangs never delays whoever raises alarms, and delays the other targets by at most its `timeout_s`. If a target does not
answer, the stage stays `ok`; metrics and the log tell of it."""

import asyncio
import logging
import time
from collections.abc import Sequence
from datetime import timedelta
from typing import Final

import httpx

from core import telemetry
from core.operations.alerts import Alert, Result
from core.ports import Clock, Store
from core.settings import AlertSettings, AlertTargetSettings
from core.stages.backoff import Backoff
from core.stages.stage import Stage, until
from scoring.alerts.payloads import HOLDS_FOR
from scoring.alerts.sending import Untold, tell

_LOOK_S: Final = 1.0
_AT_ONCE: Final = 64  # changes, of one target in one round
_AGAIN_S: Final = HOLDS_FOR.total_seconds() / 5
logger = logging.getLogger(__name__)


class AlertTarget:
    """A target, and when it is next told something."""

    def __init__(self, name: str, settings: AlertTargetSettings, backoff: Backoff) -> None:
        self.name, self.settings, self.backoff = name, settings, backoff
        self.next_s = 0.0  # monotonic
        self.reminded_s = 0.0

    def wants(self, alert: Alert) -> bool:
        found, wanted = alert.alarm.opening, self.settings
        return found.severity in wanted.severities and (
            wanted.namespaces is None or found.namespace in wanted.namespaces
        )

    def failed(self, error: Untold) -> None:
        wait_s = max(self.backoff.wait_s(), error.after_s)
        self.next_s = time.monotonic() + wait_s
        logger.warning("target %s %s; it is told again in %.0f s", self.name, error, wait_s)


class Notifier(Stage):
    """Tells each target what it was not told yet."""

    def __init__(self, store: Store, settings: AlertSettings, clock: Clock) -> None:
        super().__init__()
        self._store, self._settings, self._clock = store, settings, clock
        self._give_up = timedelta(seconds=settings.give_up_s)
        self._targets = [
            AlertTarget(name, target, Backoff(settings.retry_s, settings.most_retry_s))
            for name, target in settings.targets.items()
        ]

    def begin(self) -> None:
        with self._store.work() as work:
            for target in self._targets:
                work.told.know(target.name, self._clock.now())

    def tick(self) -> float:
        """Tell everybody who does not wait what is due, all at the same time."""
        now_s = time.monotonic()
        due = {target: self._due(target) for target in self._targets if target.next_s <= now_s}
        if any(due.values()):
            asyncio.run(self._tell_all(due))
        return until(now_s + _LOOK_S)

    def _due(self, target: AlertTarget) -> list[Alert]:
        """Return what a target is to be told, once those changes are settled of which it is not."""
        with self._store.look() as view:
            found = view.told.due(target.name, _AT_ONCE)
        wanted = []
        for alert in found:
            if not target.wants(alert):
                self._settle(target, alert, "unwanted")
            elif self._is_too_old(alert):
                logger.error("target %s was never told %s", target.name, alert.key)
                self._settle(target, alert, "given_up")
            else:
                wanted.append(alert)
        telemetry.ALERTS_WAITING.labels(target=target.name).set(len(wanted))
        return wanted + self._to_remind(target)

    def _is_too_old(self, alert: Alert) -> bool:
        """Return whether its alarm has been closed for too long to be news; what is open is news, however old."""
        closed_at = alert.alarm.closed_at
        return closed_at is not None and self._clock.now() - closed_at > self._give_up

    def _to_remind(self, target: AlertTarget) -> list[Alert]:
        """Return the open alarms of which a target was told, once it is time to say that they go on."""
        now_s = time.monotonic()
        if target.settings.kind != "alertmanager" or now_s - target.reminded_s < _AGAIN_S:
            return []
        target.reminded_s = now_s
        with self._store.look() as view:
            alerts = [Alert(alarm=alarm, change="opened") for alarm in view.alarms.that_are_open()]
            return [alert for alert in alerts if view.told.result(target.name, alert) == "delivered"]

    async def _tell_all(self, due: dict[AlertTarget, list[Alert]]) -> None:
        async with httpx.AsyncClient() as client:
            await asyncio.gather(*(self._tell(client, target, alerts) for target, alerts in due.items()))

    async def _tell(self, client: httpx.AsyncClient, target: AlertTarget, alerts: Sequence[Alert]) -> None:
        """Tell a target one change after the other, up to the first that it does not take now."""
        for alert in alerts:
            try:
                await tell(client, target.name, target.settings, alert, self._settings.console, self._clock.now())
            except Untold as error:
                telemetry.ALERT_FAILURES.labels(target=target.name, why=error.why).inc()
                if not error.is_final:
                    target.failed(error)
                    return
                logger.error("target %s refused %s: %s", target.name, alert.key, error)
                self._settle(target, alert, "refused")
            else:
                target.backoff.is_over()
                self._settle(target, alert, "delivered")

    def _settle(self, target: AlertTarget, alert: Alert, result: Result) -> None:
        with self._store.work() as work:
            if work.told.settle(target.name, alert, result, self._clock.now()):
                telemetry.ALERTS.labels(target=target.name, result=result).inc()
