"""The system clock and the manual clock."""

from datetime import UTC, datetime, timedelta

import pytest

from core.clock import ManualClock, SystemClock

START = datetime(2026, 3, 1, tzinfo=UTC)


def test_the_system_clock_is_utc_and_goes_on() -> None:
    clock = SystemClock()
    first, first_s = clock.now(), clock.monotonic()
    assert first.utcoffset() == timedelta(0)
    assert abs(first - datetime.now(UTC)) < timedelta(seconds=60)
    assert clock.monotonic() >= first_s


def test_the_manual_clock_moves_when_told_and_never_back() -> None:
    clock = ManualClock(START)
    first_s = clock.monotonic()
    assert (clock.now(), first_s > 0) == (START, True)
    clock.advance(1.5)
    clock.advance_to(START + timedelta(seconds=10))
    clock.advance_to(START)
    assert clock.now() == START + timedelta(seconds=10)
    assert clock.monotonic() - first_s == 10.0


def test_a_clock_without_a_zone_is_refused() -> None:
    with pytest.raises(AssertionError, match="UTC"):
        ManualClock(datetime(2026, 3, 1))  # noqa: DTZ001
