"""The outcomes that stand do not depend on the order in which they are read."""

import random
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.events import Outcome
from core.ids import Namespace, OutcomeId, SessionId
from scoring.rewards.amendments import standing

START = datetime(2026, 1, 1, tzinfo=UTC)


def at(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


def said(number: int, seconds: float, supersedes: int | None = None, withdrawn: bool = False) -> Outcome:
    return Outcome(
        outcome_id=OutcomeId(str(number)),
        inference_id=None,
        session_id=SessionId("s"),
        namespace=Namespace("default"),
        name="accepted",
        value=None if withdrawn else True,
        observed_at=at(seconds),
        received_at=at(seconds),
        supersedes=None if supersedes is None else OutcomeId(str(supersedes)),
        withdrawn=withdrawn,
    )


def ids(outcomes: Sequence[Outcome]) -> list[str]:
    return [entry.outcome.outcome_id for entry in standing(outcomes)]


def test_an_amendment_takes_the_place_in_time_of_what_it_amends() -> None:
    outcomes = [said(0, 1), said(1, 2), said(2, 3, supersedes=0)]
    assert ids(outcomes) == ["2", "1"]
    assert [entry.since for entry in standing(outcomes)] == [at(1), at(2)]


def test_a_withdrawal_takes_back_what_was_amended_too() -> None:
    assert ids([said(0, 1), said(1, 2, supersedes=0), said(2, 3, supersedes=1, withdrawn=True)]) == []


def test_a_withdrawal_may_come_first() -> None:
    assert ids([said(1, 2, supersedes=0, withdrawn=True)]) == []
    assert ids([said(1, 2, supersedes=0, withdrawn=True), said(0, 1)]) == []


def test_what_was_withdrawn_may_be_said_again() -> None:
    assert ids([said(0, 1), said(1, 2, supersedes=0, withdrawn=True), said(2, 3, supersedes=1)]) == ["2"]


def test_of_two_amendments_of_one_outcome_the_latest_counts() -> None:
    assert ids([said(0, 1), said(1, 3, supersedes=0), said(2, 2, supersedes=0)]) == ["1"]


@pytest.mark.parametrize("withdrawn_at", [2, 4])
def test_what_is_withdrawn_while_it_is_amended_is_gone(withdrawn_at: int) -> None:
    assert ids([said(0, 1), said(1, 3, supersedes=0), said(2, withdrawn_at, supersedes=0, withdrawn=True)]) == []


def test_outcomes_that_supersede_each_other_in_a_ring_stand_for_nothing() -> None:
    assert ids([said(0, 1, supersedes=0)]) == []
    assert ids([said(0, 1, supersedes=1), said(1, 2, supersedes=0)]) == []
    assert ids([said(0, 1, supersedes=1), said(1, 2, supersedes=0), said(2, 3, supersedes=0)]) == ["2"]


@st.composite
def histories(draw: st.DrawFn) -> list[Outcome]:
    count = draw(st.integers(1, 8))
    earlier = [
        st.none() if number == 0 else st.one_of(st.none(), st.integers(0, number - 1)) for number in range(count)
    ]
    outcomes = []
    for number in range(count):
        supersedes = draw(earlier[number])
        withdrawn = supersedes is not None and draw(st.booleans())
        outcomes.append(said(number, draw(st.integers(0, 5)), supersedes, withdrawn))
    return outcomes


@given(histories(), st.randoms(use_true_random=False))
def test_any_order_gives_the_same(history: list[Outcome], rng: random.Random) -> None:
    expected = standing(history)
    shuffled = list(history)
    rng.shuffle(shuffled)
    assert standing(shuffled) == expected


@given(histories())
def test_at_most_one_of_each_chain_stands_and_never_one_that_is_superseded(history: list[Outcome]) -> None:
    stand = standing(history)
    superseded = {outcome.supersedes for outcome in history}
    assert not any(entry.outcome.withdrawn or entry.outcome.outcome_id in superseded for entry in stand)
    roots = sum(outcome.supersedes is None for outcome in history)
    assert len(stand) <= roots
    if not any(outcome.withdrawn for outcome in history):
        assert len(stand) == roots
