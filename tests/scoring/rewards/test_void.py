"""Outcomes of the role `void`: nothing is learned from what a fault that is not the answer's brought about."""

from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from core.reward_spec import RewardSpec

SPEC = RewardSpec.model_validate(
    {
        "outcomes": {
            "accepted": {"type": "boolean", "weight": 1.0, "default": False, "false_weight": -0.3, "wait_s": 60},
            "rejected": {"type": "boolean", "weight": -0.5, "decides": True},
            "failed": {"type": "boolean", "role": "void"},
        },
        "penalties": {"empty_answer": -0.5},
    }
)


def test_a_void_session_has_no_reward_and_no_default(lab: ModuleType) -> None:
    events = lab.Events()
    turns = [events.turn("s", 0), events.turn("s", 1)]
    said = events.outcome("s", "failed", True, 2)
    assert lab.score(SPEC, turns, until=lab.at(100)) != []
    assert lab.score(SPEC, [*turns, said], until=lab.at(100)) == []


def test_it_holds_for_one_turn_where_it_is_said_of_one(lab: ModuleType) -> None:
    events = lab.Events()
    first, second = events.turn("s", 0), events.turn("s", 1)
    rewards = lab.score(SPEC, [first, second, events.outcome(first, "failed", True, 2)], until=lab.at(100))
    assert [reward.inference_id for reward in rewards] == [second.inference_id]


def test_what_was_decided_before_is_taken_back(lab: ModuleType) -> None:
    events = lab.Events()
    turn = events.turn("s", 0)
    log = [turn, events.outcome(turn, "rejected", True, 1), events.outcome("s", "failed", True, 2)]
    before, after = lab.score(SPEC, log, until=lab.at(100))
    assert (before.value, before.void) == (-0.5, False)
    assert (after.value, after.void, after.revision, after.components) == (0.0, True, 1, {})
    assert "failed" in after.why


def test_even_a_reward_of_zero_is_taken_back(lab: ModuleType) -> None:
    events = lab.Events()
    turn = events.turn("s", 0)
    accepted = events.outcome(turn, "accepted", True, 1)
    spec = SPEC.model_copy(update={"clip": (-1.0, 0.0)})
    log = [turn, accepted, events.outcome("s", "failed", True, 90)]
    before, after = lab.score(spec, log, until=lab.at(100))
    assert (before.value, before.void, after.value, after.void) == (0.0, False, 0.0, True)


@given(st.permutations(range(3)))
def test_nothing_said_later_brings_a_reward_back(lab: ModuleType, order: list[int]) -> None:
    events = lab.Events()
    turn = events.turn("s", 0)
    kinds = [
        lambda at: events.outcome("s", "failed", True, at),
        lambda at: events.outcome(turn, "rejected", True, at),
        lambda at: events.outcome(turn, "accepted", True, at),
    ]
    log = [turn, *(kinds[kind](at) for at, kind in enumerate(order, 1))]
    rewards = lab.score(SPEC, log, until=lab.at(100))
    assert rewards == [] or rewards[-1].void


def test_false_voids_nothing(lab: ModuleType) -> None:
    events = lab.Events()
    turn = events.turn("s", 0)
    said = events.outcome(turn, "failed", False, 2)
    assert [reward.void for reward in lab.score(SPEC, [turn, said], until=lab.at(100))] == [False]


@pytest.mark.parametrize("entry", [{"weight": 0.5}, {"wait_s": 5}, {"default": True}, {"type": "number"}])
def test_a_void_outcome_that_would_be_worth_something_is_refused(entry: dict[str, object]) -> None:
    outcomes = {"accepted": {"type": "boolean", "weight": 1}, "failed": {"type": "boolean", "role": "void", **entry}}
    with pytest.raises(ValidationError, match="role void"):
        RewardSpec.model_validate({"outcomes": outcomes})
