"""Scoring a log again gives the live scorer's rewards."""

from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest

from core.clock import ManualClock
from core.events import Reward, Topic
from core.records.whole_log import read_whole
from scoring.rescore import rescore
from scoring.stage import GRACE


def again(lab: ModuleType, world: Any, name: str, until: float | None = None, spec: Any = None) -> list[Reward]:
    moment = None if until is None else lab.at(until)
    records = read_whole(world.log, Topic.TURNS)
    return list(rescore(records, spec or lab.SPEC, world.fresh_store(name), ManualClock(lab.START), moment))


def in_order(rewards: list[Reward]) -> list[Reward]:
    return sorted(rewards, key=lambda reward: (reward.decided_at, reward.inference_id, reward.revision))


@pytest.mark.parametrize("seed", range(3))
def test_scored_again_it_is_what_the_live_scorer_emitted(lab: ModuleType, world: Any, seed: int) -> None:
    """The live scorer reads batches as they come; records and the wall clock end its waits."""
    events = lab.random_events(seed, 200)
    scorer = world.scorer(lab.SPEC, batch_records=16)
    for start in range(0, len(events), 5):
        world.append(*events[start : start + 5])
        lab.drain(scorer)
        # The clock must not overtake a record that has not arrived.
        arrived = max(event.received_at for event in events[: start + 5])
        following = [event.received_at for event in events[start + 5 :]]
        world.clock.advance_to(min([arrived, *following]))
        lab.drain(scorer)
    world.clock.advance_to(lab.at(500) + GRACE)
    lab.drain(scorer)
    lived = in_order(world.rewards())
    assert in_order(world.published()) == lived
    assert again(lab, world, "again.db", until=500) == lived


def test_twice_is_the_same(lab: ModuleType, world: Any) -> None:
    world.append(*lab.random_events(4, 300))
    first = again(lab, world, "first.db")
    assert first
    assert again(lab, world, "second.db") == first
    assert first == in_order(first)


def test_without_a_moment_all_waits_end(lab: ModuleType, world: Any, events: Any) -> None:
    world.append(events.turn("s", 0))
    assert again(lab, world, "early.db", until=34) == []
    (reward,) = again(lab, world, "late.db")
    assert reward.decided_at == lab.at(35)


def test_another_spec_gives_other_rewards(lab: ModuleType, world: Any, run: Callable[..., list[Reward]]) -> None:
    events = lab.Events()
    turn = events.turn("s", 0)
    (lived,) = run(lab.SPEC, [turn, events.outcome(turn, "rejected", True, 1)], 0)
    harsher = lab.RewardSpec.model_validate({"outcomes": {"rejected": {"type": "boolean", "weight": -1.0}}})
    (reward,) = again(lab, world, "harsher.db", spec=harsher)
    assert (lived.value, reward.value) == (-0.5, -1.0)
    assert reward.spec == harsher.digest != lived.spec


def test_an_empty_log_makes_nothing(lab: ModuleType, world: Any) -> None:
    assert again(lab, world, "empty.db") == []


def test_the_clock_follows_the_log(lab: ModuleType, world: Any, events: Any) -> None:
    world.append(events.turn("s", 0), events.turn("t", 12))
    clock = ManualClock(lab.START)
    list(rescore(read_whole(world.log, Topic.TURNS), lab.SPEC, world.fresh_store("again.db"), clock))
    assert clock.now() == lab.at(12)


def test_a_store_with_a_ledger_is_refused(lab: ModuleType, world: Any, run: Callable[..., list[Reward]]) -> None:
    run(lab.SPEC, [lab.Events().turn("s", 0)])
    with pytest.raises(AssertionError, match="store of its own"):
        list(rescore([], lab.SPEC, world.store, ManualClock(lab.START)))
