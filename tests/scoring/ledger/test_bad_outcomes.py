"""Invalid outcomes are set aside or shown, never silently zero."""

from types import ModuleType
from typing import Any

import pytest
from stepping import step

from core import telemetry
from core.codec import decode
from core.events import DeadLetter, Topic
from core.reward_spec import RewardSpec
from core.settings import ScoringSettings
from scoring.stage import Scorer

SPEC = RewardSpec.model_validate(
    {
        "outcomes": {
            "accepted": {"type": "boolean", "weight": 1.0, "false_weight": -0.2},
            "partially_accepted": {"type": "number", "weight": 1.0, "minimum": 0, "maximum": 1},
            "rejected": {"type": "boolean", "weight": -0.5},
            "savings": {"type": "number", "weight": 1e-9, "aggregation": "mean"},
            "comment": {"type": "text"},
        },
        "session": {"idle_timeout_s": 60},
    }
)


def letters(world: Any) -> list[DeadLetter]:
    with world.store.look() as view:
        kept = view.dead_letters.newest(100)
    reader = world.log.reader([Topic.DEAD_LETTERS])
    announced = [record.event for record in reader.poll(100, 0)]
    reader.close()
    assert sorted(announced, key=lambda letter: letter.reason) == sorted(kept, key=lambda letter: letter.reason)
    return kept


def oddities(reason: str) -> float:
    return telemetry.SCORER_ODDITIES.labels(reason=reason)._value.get()


@pytest.mark.parametrize(
    ("name", "value", "why"),
    [
        ("partially_accepted", 1.5, "takes at most 1, and this is 1.5"),
        ("partially_accepted", -0.1, "takes at least 0"),
        ("partially_accepted", float("inf"), "takes a finite number"),
        ("partially_accepted", True, "takes a finite number"),
        ("savings", -1e308, "takes a number from -1e+12 to 1e+12, and this is -1e+308"),
        ("accepted", 1.0, "takes true or false"),
        ("comment", 3.0, "takes text"),
        ("likes", True, "'likes' is no outcome of the reward spec"),
    ],
)
def test_what_cannot_be_used_is_set_aside_whole(
    lab: ModuleType, world: Any, events: Any, name: str, value: Any, why: str
) -> None:
    turn = events.turn("s", 0)
    bad = events.outcome(turn, name, value, 1)
    world.append(turn, bad, events.outcome(turn, "rejected", True, 2))
    lab.drain(world.scorer(SPEC))
    (letter,) = letters(world)
    assert why in letter.reason
    assert decode(letter.raw) == bad
    world.clock.advance_to(lab.at(100))
    lab.drain(world.scorers[0])
    assert [reward.value for reward in world.rewards()] == [-0.5]


def test_the_largest_numbers_of_the_largest_weights_are_counted(lab: ModuleType, events: Any) -> None:
    weights = {"up": 1e12, "down": -1e12}
    outcomes = {name: {"type": "number", "weight": weight, "aggregation": "sum"} for name, weight in weights.items()}
    spec = RewardSpec.model_validate({"outcomes": outcomes, "clip": [-1e12, 1e12], "session": {"idle_timeout_s": 60}})
    turn = events.turn("s", 0)
    said = [events.outcome(turn, name, 1e12, second) for second, name in enumerate(("up", "down", "up"), 1)]
    *_, reward = lab.score(spec, [turn, *said], until=lab.at(100))
    assert (reward.value, reward.components) == (1e12, {"down": -1e24, "up": 2e24})


def test_what_was_set_aside_counts_once_the_spec_knows_it(lab: ModuleType, world: Any, events: Any) -> None:
    turn = events.turn("s", 0)
    said = events.outcome(turn, "likes", True, 1)
    world.append(turn, said)
    first = world.scorer(SPEC)
    lab.drain(first)
    first.close()
    known = SPEC.model_dump()["outcomes"] | {"likes": {"type": "boolean", "weight": 0.3, "decides": True}}
    world.append(decode(letters(world)[0].raw))
    lab.drain(world.scorer(RewardSpec.model_validate({"outcomes": known})))
    assert [reward.components for reward in world.rewards()] == [{"likes": 0.3}]


def test_what_the_spec_knows_no_more_can_still_be_withdrawn(lab: ModuleType, world: Any, events: Any) -> None:
    turn = events.turn("s", 0)
    said = events.outcome(turn, "likes", True, 1)
    world.append(turn, events.withdrawal(said, 2))
    lab.drain(world.scorer(SPEC))
    assert letters(world) == []


def test_an_unusable_amendment_leaves_what_it_amends(lab: ModuleType, events: Any) -> None:
    turn = events.turn("s", 0)
    said = events.outcome(turn, "partially_accepted", 0.5, 1)
    rewards = lab.score(SPEC, [turn, said, events.amendment(said, 7.0, 2)], until=lab.at(100))
    assert [reward.value for reward in rewards] == [0.5]


def patient(world: Any, early_outcome_s: float) -> Scorer:
    settings = ScoringSettings(tick_s=1e-6, early_outcome_s=early_outcome_s)
    scorer = Scorer(world.log, world.store, SPEC, settings, world.clock)
    world.scorers.append(scorer)
    return scorer


def search(scorer: Scorer) -> None:
    """Search for due turns without the pause between two searches."""
    scorer._next_search_s = 0.0
    while step(scorer, 0):
        pass


def test_an_outcome_before_its_turn_waits_and_is_then_set_aside(lab: ModuleType, world: Any, events: Any) -> None:
    late, never = events.turn("s", 0), events.turn("t", 0)
    said = [events.outcome(turn, "rejected", True, 1) for turn in (late, never)]
    world.append(*said)
    scorer = patient(world, early_outcome_s=3600)
    world.clock.advance_to(lab.at(3600))
    search(scorer)
    assert letters(world) == []
    world.append(late)
    world.clock.advance_to(lab.at(3602))
    search(scorer)
    (letter,) = letters(world)
    assert f"its turn {never.inference_id} never came" in letter.reason
    assert decode(letter.raw) == said[1]
    search(scorer)
    assert len(letters(world)) == 1
    assert [(reward.inference_id, reward.value) for reward in world.rewards()][-1] == (late.inference_id, -0.5)


def test_nothing_is_given_up_while_the_log_is_still_read(lab: ModuleType, world: Any, events: Any) -> None:
    turn = events.turn("s", 0)
    world.append(events.outcome(turn, "rejected", True, 1), turn)
    world.clock.advance_to(lab.at(10_000))
    settings = ScoringSettings(tick_s=1e-6, early_outcome_s=1, batch_records=1)
    scorer = Scorer(world.log, world.store, SPEC, settings, world.clock)
    world.scorers.append(scorer)
    search(scorer)
    assert letters(world) == []
    assert [reward.value for reward in world.rewards()] == [-0.5]


@pytest.mark.parametrize(
    ("said", "named"),
    [
        ([("accepted", True), ("rejected", True)], "accepted and rejected"),
        ([("rejected", True), ("partially_accepted", 0.5)], "partially_accepted and rejected"),
        ([("accepted", True), ("accepted", False)], "accepted"),
    ],
)
def test_contradictions_are_shown_and_counted(
    lab: ModuleType, events: Any, said: list[tuple[str, Any]], named: str
) -> None:
    turn = events.turn("s", 0)
    before = oddities("contradiction")
    log = [turn, *(events.outcome(turn, name, value, 1 + place) for place, (name, value) in enumerate(said))]
    reward = lab.score(SPEC, log, until=lab.at(100))[-1]
    assert f"; contradicting: {named}; corrects" in reward.why
    assert oddities("contradiction") - before == 1


def test_what_was_taken_back_contradicts_nothing(lab: ModuleType, events: Any) -> None:
    turn = events.turn("s", 0)
    said = events.outcome(turn, "rejected", True, 1)
    log = [turn, said, events.withdrawal(said, 2), events.outcome(turn, "accepted", True, 3)]
    before = oddities("contradiction")
    assert "contradicting" not in lab.score(SPEC, log, until=lab.at(100))[-1].why
    log = [turn, events.outcome(turn, "rejected", True, 1), events.outcome("s", "accepted", True, 3)]
    assert "contradicting" not in lab.score(SPEC, log, until=lab.at(100))[-1].why
    assert oddities("contradiction") == before
