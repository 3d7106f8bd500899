"""Alarms of monitors: opened once, closed when their monitor has been content for a while, written to the log.

The store decides what is open, so that a stage that starts again opens nothing twice. A monitor is content when it sees
enough turns and nothing of what it looks for; too few turns say nothing, and close nothing."""

import logging
import secrets
from collections import Counter
from datetime import UTC, datetime

from core import telemetry
from core.events import Topic
from core.ids import Namespace
from core.operations.alarms import NO_MONITORS, RELEASE, Opening, in_words
from core.ports import Clock, EventLog, Store
from core.settings import MonitorSettings
from scoring.monitors import Finding, Monitor, Window

_PAGE = 256
Subject = tuple[str, Namespace, str]  # monitor, namespace, workload
logger = logging.getLogger(__name__)


class MonitorAlarms:
    """The alarms of a stage. Its methods raise StoreUnavailable and LogUnavailable: try again then."""

    def __init__(self, log: EventLog, store: Store, settings: MonitorSettings, clock: Clock) -> None:
        self._log, self._store, self._settings, self._clock = log, store, settings, clock
        self._open: dict[Subject, str] = {}
        self._content_since: dict[Subject, datetime] = {}

    def load(self, watching: frozenset[str]) -> None:
        """Load what is open. Close alarms of monitors that no longer look; leave those that other stages opened."""
        with self._store.work() as work:
            for alarm in work.alarms.that_are_open():
                found = alarm.opening
                if found.monitor in watching:
                    self._open[found.monitor, found.namespace, found.workload] = alarm.alarm_id
                elif found.monitor not in NO_MONITORS:
                    work.alarms.close(alarm.alarm_id, self._clock.now())

    def judge(self, monitor: Monitor, subject: Subject, finding: Finding | None, window: Window) -> None:
        if finding is None:
            return
        if finding.trips:
            self._content_since.pop(subject, None)
            if subject not in self._open:
                self._raise(monitor, subject, finding, window)
        elif subject in self._open:
            now = self._clock.now()
            since = self._content_since.setdefault(subject, now)
            if (now - since).total_seconds() >= self._settings.close_after_s:
                self._close(subject, now)

    def tell(self) -> int:
        """Write each change to the log, at least once; return how many there were."""
        with self._store.look() as view:
            waiting = view.alarms.untold(_PAGE)
        if waiting:
            self._log.append_blocking(Topic.ALARMS, [alarm.event() for alarm in waiting])
            with self._store.work() as work:
                work.alarms.mark_told(waiting)
        return len(waiting)

    def count(self) -> None:
        """Count open alarms for the metrics, with those that others opened and acknowledged."""
        with self._store.look() as view:
            known = view.alarms.that_are_open()
        counts = Counter((alarm.opening.monitor, alarm.opening.severity, alarm.state) for alarm in known)
        telemetry.ALARMS_OPEN.clear()
        for (monitor, severity, state), count in counts.items():
            telemetry.ALARMS_OPEN.labels(monitor=monitor, severity=severity, state=state).set(count)

    def _raise(self, monitor: Monitor, subject: Subject, finding: Finding, window: Window) -> None:
        _, namespace, workload = subject
        holds = (RELEASE,) if monitor.severity == "critical" and self._settings.hold_releases else ()
        times = [turn.at_s for turn in window.recent]
        opening = Opening(
            alarm_id=f"{monitor.name}-{secrets.token_hex(4)}",
            monitor=monitor.name,
            meaning=monitor.meaning,
            severity=monitor.severity,
            namespace=namespace,
            workload=workload,
            figures=finding.figures,
            holds=holds,
            opened_at=self._clock.now(),
            window_start=datetime.fromtimestamp(min(times), UTC),
            window_end=datetime.fromtimestamp(max(times), UTC),
        )
        with self._store.work() as work:
            is_new = work.alarms.open(opening)
        if is_new:
            telemetry.ALARMS.labels(monitor=monitor.name, severity=monitor.severity).inc()
            # Forms of turns name the tools of clients, which stand in the alarm and in no line of the log.
            figures = in_words({name: value for name, value in finding.figures.items() if ":" not in name})
            logger.warning("alarm %s: workload %s of %s: %s", opening.alarm_id, workload, namespace, figures)
            self._open[subject] = opening.alarm_id
        else:
            self._adopt(subject)

    def _adopt(self, subject: Subject) -> None:
        """Adopt an alarm that another stage, whose lease ended, has opened."""
        with self._store.look() as view:
            for alarm in view.alarms.that_are_open():
                found = alarm.opening
                if (found.monitor, found.namespace, found.workload) == subject:
                    self._open[subject] = alarm.alarm_id

    def _close(self, subject: Subject, now: datetime) -> None:
        with self._store.work() as work:
            work.alarms.close(self._open[subject], now)
        logger.info("alarm %s is closed", self._open[subject])
        del self._open[subject], self._content_since[subject]
