"""What nobody was shown is not ignored, whenever and in whatever order the news of it comes."""

import itertools
import random
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest

from core.events import Completion, Reward
from core.reward_spec import RewardSpec

OUTCOMES: dict[str, Any] = {
    "accepted": {"type": "boolean", "weight": 1.0, "decides": True},
    "rejected": {"type": "boolean", "weight": -0.5, "decides": True},
    "seen": {"type": "boolean", "role": "shown", "level": "inference"},
}
SUGGESTION = {"ignored_reward": -0.2, "wait_s": 7}
ALWAYS = RewardSpec.model_validate({"outcomes": OUTCOMES, "suggestion": {**SUGGESTION, "ignored_if_shown": True}})
REPORTED = RewardSpec.model_validate({"outcomes": OUTCOMES, "suggestion": SUGGESTION})
Case = tuple[RewardSpec, Callable[[Any], Completion]]


@pytest.fixture(params=["by the spec", "by the client's word"])
def case(request: pytest.FixtureRequest) -> Case:
    if request.param == "by the spec":
        return ALWAYS, lambda events: events.turn("s", 0, purpose="suggestion")
    return REPORTED, lambda events: events.turn("s", 0, purpose="suggestion", tags={"reports": "shown"})


def values(rewards: list[Reward]) -> list[float]:
    return [reward.value for reward in rewards]


def test_what_nobody_saw_has_no_reward(lab: ModuleType, case: Case) -> None:
    spec, suggest = case
    assert lab.score(spec, [suggest(lab.Events())], until=lab.at(10_000)) == []


def test_what_was_shown_and_left_is_ignored(lab: ModuleType, case: Case) -> None:
    spec, suggest = case
    events = lab.Events()
    turn = suggest(events)
    log = [turn, events.outcome(turn, "seen", True, 1)]
    assert lab.score(spec, log, until=lab.at(7.9)) == []
    (reward,) = lab.score(spec, log, until=lab.at(8))
    assert (reward.value, reward.components, reward.decided_at) == (-0.2, {"ignored": -0.2}, lab.at(8))


def test_the_wait_begins_anew_when_it_is_shown_late(lab: ModuleType, case: Case) -> None:
    spec, suggest = case
    events = lab.Events()
    turn = suggest(events)
    other = events.turn("another", 50)  # time passes in between
    log = [turn, other, events.outcome(turn, "seen", True, 100)]
    assert lab.score(spec, log, until=lab.at(106.9)) == []
    (reward,) = lab.score(spec, log, until=lab.at(107))
    assert (reward.value, reward.decided_at) == (-0.2, lab.at(107))
    taken = [*log, events.outcome(turn, "accepted", True, 103)]
    assert values(lab.score(spec, taken, until=lab.at(1000))) == [1.0]


def test_word_that_it_was_shown_may_come_before_the_turn_and_be_taken_back(lab: ModuleType, case: Case) -> None:
    spec, suggest = case
    events = lab.Events()
    turn = suggest(events)
    seen = events.outcome(turn, "seen", True, -1)
    assert values(lab.score(spec, [seen, turn], until=lab.at(50))) == [-0.2]
    withdrawn = events.withdrawal(seen, 20)
    assert values(lab.score(spec, [seen, turn, withdrawn], until=lab.at(50))) == [-0.2, 0.0]


def test_word_that_it_was_not_shown_is_no_showing(lab: ModuleType, case: Case) -> None:
    spec, suggest = case
    events = lab.Events()
    turn = suggest(events)
    assert lab.score(spec, [turn, events.outcome(turn, "seen", False, 1)], until=lab.at(50)) == []


def test_what_is_taken_without_word_that_it_was_shown_counts(lab: ModuleType, case: Case) -> None:
    spec, suggest = case
    events = lab.Events()
    turn = suggest(events)
    assert values(lab.score(spec, [turn, events.outcome(turn, "accepted", True, 2)], until=lab.at(50))) == [1.0]


def test_others_are_ignored_as_ever(lab: ModuleType) -> None:
    events = lab.Events()
    turn = events.turn("s", 0, purpose="suggestion")
    assert values(lab.score(REPORTED, [turn], until=lab.at(50))) == [-0.2]


def test_with_a_threshold_what_nobody_saw_costs_nothing_either(lab: ModuleType) -> None:
    spec = RewardSpec.model_validate(
        {"outcomes": OUTCOMES, "suggestion": {"show_threshold": 0.25, "ignored_if_shown": True}}
    )
    events = lab.Events()
    turn = events.turn("s", 0, purpose="suggestion")
    assert lab.score(spec, [turn], until=lab.at(100)) == []
    assert values(lab.score(spec, [turn, events.outcome(turn, "seen", True, 1)], until=lab.at(100))) == [-0.25]


def test_the_last_value_does_not_depend_on_how_the_log_is_read(lab: ModuleType) -> None:
    rng = random.Random(5)
    events = lab.Events()
    turns = [events.turn(f"s{number % 7}", number, purpose="suggestion") for number in range(40)]
    news = [events.outcome(turn, "seen", rng.random() < 0.8, rng.uniform(0, 120)) for turn in turns]
    news += [
        events.outcome(turn, rng.choice(["accepted", "rejected"]), True, rng.uniform(0, 150)) for turn in turns[::3]
    ]
    log = sorted([*turns, *news], key=lambda event: event.received_at)
    runs = [lab.score(ALWAYS, log, batch=size, until=lab.at(5000)) for size in (1, 7, 1000)]
    for one, other in itertools.pairwise(runs):
        assert [(r.inference_id, r.revision, r.value, r.decided_at) for r in sorted(one, key=_order)] == [
            (r.inference_id, r.revision, r.value, r.decided_at) for r in sorted(other, key=_order)
        ]
    assert len({reward.inference_id for reward in runs[0]}) < len(turns), "some were never shown"


def _order(reward: Reward) -> tuple[str, int]:
    return reward.inference_id, reward.revision


@pytest.mark.parametrize("kind", ["number", "text"])
def test_the_role_is_a_booleans(kind: str) -> None:
    with pytest.raises(ValueError, match="role shown"):
        RewardSpec.model_validate({"outcomes": {**OUTCOMES, "seen": {"type": kind, "role": "shown"}}})
