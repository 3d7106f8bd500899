"""The wall clock, and one that only moves when told (replay, tests)."""

import time
from datetime import UTC, datetime, timedelta


class SystemClock:
    def now(self) -> datetime:
        return datetime.now(UTC)

    def monotonic(self) -> float:
        return time.monotonic()


class ManualClock:
    """Time as the log tells it: never moves backwards."""

    def __init__(self, start: datetime) -> None:
        assert start.tzinfo is not None, "times are UTC"
        self._start = start
        self._now = start

    def now(self) -> datetime:
        return self._now

    def monotonic(self) -> float:
        return (self._now - self._start).total_seconds()

    def advance_to(self, moment: datetime) -> None:
        self._now = max(self._now, moment)

    def advance(self, seconds: float) -> None:
        self._now += timedelta(seconds=seconds)
