"""Events that must be read in order are in one partition."""

from collections.abc import Callable
from datetime import UTC, datetime

import pytest

from core.events import Alarm, Completion, Outcome, SessionEnded
from core.ids import Namespace
from ingest.routing import partition_of

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def alarm(monitor: str, alarm_id: str) -> Alarm:
    return Alarm(
        alarm_id=alarm_id,
        monitor=monitor,
        severity="critical",
        window_start=NOW,
        window_end=NOW,
        figures={},
        state="opened",
        at=NOW,
    )


def test_alarms_of_one_monitor_are_in_order_and_those_of_several_are_spread() -> None:
    assert {partition_of(alarm("length", f"a{number}"), 8) for number in range(5)} == {
        partition_of(alarm("length", "b"), 8)
    }
    assert len({partition_of(alarm(f"monitor {number}", "a"), 8) for number in range(40)}) == 8


@pytest.mark.parametrize("partitions", [1, 2, 7])
def test_all_of_a_session_is_in_its_turns_partition(
    completion: Callable[..., Completion], outcome: Callable[..., Outcome], partitions: int
) -> None:
    for _ in range(5):
        turn = completion()
        of_session = {"session_id": turn.session_id, "inference_id": None}
        ended = SessionEnded(session_id=turn.session_id, namespace=Namespace("n"), received_at=NOW)
        events = (turn, outcome(turn), outcome(turn, **of_session), ended)
        assert len({partition_of(event, partitions) for event in events}) == 1
