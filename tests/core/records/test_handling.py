"""Items that cannot be handled are found, and all others are handled once and in order."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.errors import Fenced, LogUnavailable, NewerSchema, StoreUnavailable
from core.records.handling import attempt, take_all, words_of


@given(st.lists(st.booleans(), max_size=40), st.integers(1, 4))
def test_all_but_the_culprits_are_taken_once_and_in_order(good: list[bool], times: int) -> None:
    taken: list[int] = []
    refused: list[int] = []
    alone: Counter[int] = Counter()

    def take(numbers: "list[int] | range") -> None:
        if len(numbers) == 1:
            alone[numbers[0]] += 1
        if not all(good[number] for number in numbers):
            raise ZeroDivisionError(f"number of {numbers}")
        taken.extend(numbers)

    take_all(range(len(good)), take, lambda number, _: refused.append(number), times)
    assert taken == [number for number, is_good in enumerate(good) if is_good]
    assert refused == [number for number, is_good in enumerate(good) if not is_good]
    assert all(alone[number] == times for number in refused)


def test_one_culprit_of_many_costs_few_attempts() -> None:
    calls = 0

    def take(numbers: range) -> None:
        nonlocal calls
        calls += 1
        if 700 in numbers:
            raise RecursionError

    take_all(range(2048), take, lambda *_: None, 3)
    assert calls <= 2 * 11 + 3


@pytest.mark.parametrize("kind", [StoreUnavailable, LogUnavailable, Fenced, NewerSchema, OSError])
def test_what_is_no_records_fault_goes_on_up(kind: type[Exception]) -> None:
    tries = 0

    def do() -> None:
        nonlocal tries
        tries += 1
        raise kind("away")

    with pytest.raises(kind):
        attempt(do, 3)
    assert tries == 1


def test_what_works_at_last_is_no_failure() -> None:
    left = [ValueError(), ValueError()]

    def do() -> None:
        if left:
            raise left.pop()

    assert attempt(do, 3) is None


def test_words_are_short_and_printable() -> None:
    said = words_of(ValueError("\ud800" + "x" * 10_000))
    assert said.startswith("ValueError: \\ud800xxx")
    assert len(said) == 500
