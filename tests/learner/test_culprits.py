"""A turn that makes its batch fail is set aside, and the others are trained."""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from logged_world import World, logged_past, make_reward, make_turn, manifests, settle

from core.codec import decode
from core.events import DeadLetter, Topic, VersionSpan
from core.ids import base_ref
from learner.batches.backlog import Backlog
from learner.poison_rewards import record_of


@pytest.fixture
def world(make_world: Callable[[str], World]) -> World:
    return make_world("world")


def letters(world: World) -> list[DeadLetter]:
    with world.store.look() as view:
        return view.dead_letters.newest(100)


def test_a_turn_that_makes_no_tensors_is_set_aside(world: World) -> None:
    past = logged_past(8)
    turn = make_turn(3)
    spans = (VersionSpan(start=0, end=-1, version=base_ref(1)),)
    poison = msgspec.structs.replace(turn, policy_versions=spans)
    reward = make_reward(poison, 1.0)
    world.tell(*past[:4], (poison, reward), *past[4:])
    learner = world.learner(settings={"batch.turns": 9})
    settle(learner)
    learner.close()
    (letter,) = letters(world)
    assert (letter.topic, decode(letter.raw)) == (Topic.REWARDS, reward)
    assert letter.reason.startswith("the learner cannot take it: ")
    (made,) = manifests(world)
    assert {record.inference_id for record in made.turns} == {turn.inference_id for turn, _ in past}
    assert made.version == base_ref(2)
    assert made.drops == {"failed": (poison.inference_id,)}


def test_a_turn_of_other_tokens_never_trains(world: World) -> None:
    past = logged_past(8)
    poison = make_turn(3, token_ids=(10**9,), logprobs=(-1.0,), policy_versions=())
    world.tell(*past[:4], (poison, make_reward(poison, 1.0)), *past[4:])
    learner = world.learner(settings={"batch.turns": 9})
    settle(learner)
    learner.close()
    (made,) = manifests(world)
    assert made.drops == {"unknown_tokens": (poison.inference_id,)}
    assert letters(world) == []


def test_where_it_stands_is_read_from_the_log(world: World) -> None:
    """A checkpoint's backlog does not hold the record's position."""
    past = logged_past(20)
    world.tell(*past)
    for turn, reward in past:
        record = record_of(world.log, reward)
        assert record is not None
        assert decode(record.raw) == reward
        assert record_of(world.log, make_reward(turn, 0.125)) is None


def test_a_reward_that_cannot_be_admitted_is_set_aside(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    past = logged_past(9)
    add = Backlog.add

    def fragile(self: Any, reward: Any) -> bool:
        if reward.inference_id == past[4][0].inference_id:
            raise OverflowError("poison")
        return add(self, reward)

    monkeypatch.setattr(Backlog, "add", fragile)
    world.tell(*past)
    learner = world.learner()
    settle(learner)
    learner.close()
    assert [decode(letter.raw) for letter in letters(world)] == [past[4][1]]
    assert len(manifests(world)[0].turns) == 8
