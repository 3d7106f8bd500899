"""Alarms as the store has them: what a monitor found, and what became of it.

A stage that watches opens and closes them; an operator acknowledges; the release controller waits while one that holds
releases is neither acknowledged nor closed.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Final

import msgspec

from core.events import Alarm, AlarmState, Severity
from core.ids import Namespace

RELEASE: Final = "release"
"""The value of `holds` in an alarm under which no version goes live."""
NOT_FINITE: Final = "non_finite_loss"
"""The learner's own alarm: an update was skipped."""
STAGE_DOWN: Final = "stage_down"
"""The runner's own alarm: a stage is down, and the alarm's workload names it."""
NO_MONITORS: Final = frozenset({NOT_FINITE, STAGE_DOWN})
"""The alarms that the monitors' stage neither opens nor closes."""


def in_words(figures: Mapping[str, float]) -> str:
    """Return figures by name; those that count something, versions and turns, are whole."""
    words = ((name, f"{value:.0f}" if float(value).is_integer() else f"{value:.3g}") for name, value in figures.items())
    return ", ".join(f"{name} {value}" for name, value in sorted(words))


class Opening(msgspec.Struct, frozen=True, kw_only=True):
    """The finding that opened an alarm.

    `window_start` and `window_end`: arrival of the first and the last turn that was examined."""

    alarm_id: str
    monitor: str
    meaning: str
    severity: Severity
    namespace: Namespace
    workload: str
    figures: dict[str, float]
    holds: tuple[str, ...]
    opened_at: datetime
    window_start: datetime
    window_end: datetime


class StoredAlarm(msgspec.Struct, frozen=True, kw_only=True):
    """`sequence` counts alarms in the order in which they were opened."""

    sequence: int
    opening: Opening
    acknowledged_at: datetime | None = None
    acknowledged_by: str | None = None
    note: str | None = None
    closed_at: datetime | None = None

    @property
    def alarm_id(self) -> str:
        return self.opening.alarm_id

    @property
    def state(self) -> AlarmState:
        if self.closed_at is not None:
            return "closed"
        return "opened" if self.acknowledged_at is None else "acknowledged"

    @property
    def holds_releases(self) -> bool:
        """True while the alarm holds releases: until it is acknowledged or closed."""
        return self.state == "opened" and self.opening.severity == "critical" and RELEASE in self.opening.holds

    def event(self) -> Alarm:
        """Its state, as the log is told."""
        found = self.opening
        return Alarm(
            alarm_id=found.alarm_id,
            monitor=found.monitor,
            severity=found.severity,
            namespace=found.namespace,
            workload=found.workload,
            window_start=found.window_start,
            window_end=found.window_end,
            figures=found.figures,
            holds=found.holds,
            state=self.state,
            at=self.closed_at or self.acknowledged_at or found.opened_at,
        )
