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
    turns = [events.turn("s", 0), events.turn("s", 1, purpose="side")]
    said, nothing = events.outcome("s", "failed", True, 2), events.outcome("s", "failed", False, 2)
    assert [reward.void for reward in lab.score(SPEC, [*turns, nothing], until=lab.at(100))] == [False, False]
    assert lab.score(SPEC, [*turns, said], until=lab.at(100)) == []


def test_it_holds_for_one_turn_where_it_is_said_of_one(lab: ModuleType) -> None:
    events = lab.Events()
    first, second = events.turn("s", 0), events.turn("s", 1)
    rewards = lab.score(SPEC, [first, second, events.outcome(first, "failed", True, 2)], until=lab.at(100))
    assert [reward.inference_id for reward in rewards] == [second.inference_id]


@pytest.mark.parametrize(("clip", "value"), [((-1.0, 1.0), 1.0), ((-1.0, 0.0), 0.0)])
def test_what_was_decided_before_is_taken_back_and_comes_again_with_a_withdrawal(
    lab: ModuleType, clip: tuple[float, float], value: float
) -> None:
    """Even a reward of 0 is."""
    events = lab.Events()
    turn = events.turn("s", 0, environment="simulated")
    failed = events.outcome("s", "failed", True, 90)
    withdrawn = events.outcome("s", "failed", None, 95, supersedes=failed.outcome_id, withdrawn=True)
    log = [turn, events.outcome(turn, "accepted", True, 1), failed, withdrawn]
    rewards = lab.score(SPEC.model_copy(update={"clip": clip}), log, until=lab.at(100))
    assert [(reward.value, reward.void) for reward in rewards] == [(value, False), (0.0, True), (value, False)]
    assert (rewards[1].revision, rewards[1].components, rewards[1].why) == (
        1,
        {},
        f"void: failed; corrects {value:+.2f}",
    )
    assert {reward.environment for reward in rewards} == {"simulated"}


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


@pytest.mark.parametrize("entry", [{"weight": 0.5}, {"wait_s": 5}, {"default": True}, {"type": "number"}])
def test_a_void_outcome_that_would_be_worth_something_is_refused(entry: dict[str, object]) -> None:
    outcomes = {"accepted": {"type": "boolean", "weight": 1}, "failed": {"type": "boolean", "role": "void", **entry}}
    with pytest.raises(ValidationError, match="role void"):
        RewardSpec.model_validate({"outcomes": outcomes})
