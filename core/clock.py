"""The wall clock, one that only moves when told (replay, tests), and moments as whole numbers."""

import time
from datetime import UTC, datetime, timedelta

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def to_micros(moment: datetime) -> int:
    return (moment - _EPOCH) // timedelta(microseconds=1)


def from_micros(micros: int) -> datetime:
    return _EPOCH + timedelta(microseconds=micros)


class SystemClock:
    def now(self) -> datetime:
        return datetime.now(UTC)

    def monotonic(self) -> float:
        return time.monotonic()


class ManualClock:
    """Time as the log tells it: never moves backwards."""

    def __init__(self, start: datetime) -> None:
        assert start.tzinfo is not None, "times are UTC"
        self._zero = start - timedelta(hours=1)  # when a clock began says nothing: nobody may count on 0
        self._now = start

    def now(self) -> datetime:
        return self._now

    def monotonic(self) -> float:
        return (self._now - self._zero).total_seconds()

    def advance_to(self, moment: datetime) -> None:
        self._now = max(self._now, moment)

    def advance(self, seconds: float) -> None:
        self._now += timedelta(seconds=seconds)
