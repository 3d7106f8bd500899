"""Which failures get a second try, and what is remembered of them."""

from pathlib import Path

import pytest
from checks import records
from checks.records import Failure
from checks.second_tries import MOST_TRIES, Flaky, History, deserving

_LATE = Failure("tests/ingest/kafka/test_kafka_log.py::test_it_comes", "Failed: timed out")


def test_who_waits_for_others_gets_one() -> None:
    assert deserving([_LATE], changed=[]) == [_LATE]


@pytest.mark.parametrize(
    "failure",
    [
        Failure("tests/faults/test_poison.py::test_poison", "Failed: timed out"),
        Failure("tests/e2e/test_kill.py::test_a_kill", "Failed: timed out"),
        Failure("tests/scoring/test_a.py::test_b", "AssertionError: 2 turns were lost"),
        Failure("tests/scoring/test_a.py::test_b", "assert report['missing_turns'] == []"),
        Failure("tests/scoring/test_a.py::test_b", "assert twice == 0"),
        Failure("tests/scoring/test_a.py", "ImportError", is_collected=False),
    ],
)
def test_words_of_loss_kills_and_what_cannot_be_collected_get_none(failure: Failure) -> None:
    assert deserving([failure], changed=[]) == []


@pytest.mark.parametrize("changed", [["tests/ingest/kafka/test_kafka_log.py"], None])
def test_what_the_change_touches_or_may_touch_gets_none(changed: list[str] | None) -> None:
    assert deserving([_LATE], changed) == []


def test_many_at_once_are_nobodys_bad_luck() -> None:
    many = [Failure(f"tests/a.py::test_{number}", "late") for number in range(MOST_TRIES + 1)]
    assert deserving(many, changed=[]) == []
    assert deserving(many[1:], changed=[]) == many[1:]


def test_a_history_is_there_for_the_next_run(tmp_path: Path) -> None:
    history = History(tmp_path / "history")
    assert (history.shown(), history.passed()) == ([], [])
    history.add_flaky("abc", "2026-01-02", [Flaky("tests/a.py::test_b", "why")])
    history.add_passed("abc", "2026-01-02")
    history.add_passed("def", "2026-01-03")
    again = History(tmp_path / "history")
    assert again.shown() == ["2026-01-02  abc  tests/a.py::test_b"]
    assert again.passed() == ["def", "abc"]


def test_a_record_that_was_cut_off_is_read_to_its_last_whole_line(tmp_path: Path) -> None:
    record = tmp_path / "record"
    record.write_text(
        '{"failed": "a.py::b", "when": "setup", "words": "first"}\n'
        '{"failed": "a.py::b", "when": "teardown", "words": "second"}\n'
        '{"test": "a.py::b", "seconds": 1.5}\n{"test": "a.py::b", "seconds": 2}\n{"test": "a.py::c", "sec'
    )
    assert records.failures(record) == [Failure("a.py::b", "first")]
    assert records.slowest(record, 2) == [("a.py::b", 3.5)]
    assert records.failures(tmp_path / "none") == []
    assert not records.was_ended_by_failures(record), "it was killed"
