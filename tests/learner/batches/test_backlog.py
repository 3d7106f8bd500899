"""Feedback arrives faster than it is learned from: the turns that would teach least are dropped and counted."""

from collections.abc import Callable

import msgspec
import pytest
from logged_world import World, make_reward, make_turn, manifests, settle

from core.events import Reward
from learner.batches.backlog import Backlog, Bounds, refusal
from learner.sequences.scored import Applied

MakeWorld = Callable[[str], World]


def rewards(*values: float, workload: str = "write") -> list[Reward]:
    return [make_reward(make_turn(number, workload=workload), value) for number, value in enumerate(values)]


def backlog_of(*waiting: Reward) -> Backlog:
    backlog = Backlog()
    assert all(map(backlog.add, waiting))
    return backlog


def left(backlog: Backlog) -> list[float]:
    return [reward.value for reward in backlog.pending.values()]


def test_within_its_bound_nothing_goes() -> None:
    backlog = backlog_of(*rewards(1.0, 1.0, 1.0))
    assert backlog.trim(3) == []
    assert left(backlog) == [1.0, 1.0, 1.0]


def test_beyond_it_the_oldest_go() -> None:
    backlog = backlog_of(*rewards(1.0, -1.0, 0.7, -0.7))
    assert [(reward.value, why) for reward, why in backlog.trim(2)] == [(1.0, "backlog_full"), (-1.0, "backlog_full")]
    assert left(backlog) == [0.7, -0.7]


def test_before_them_those_go_whose_reward_is_what_was_to_be_expected() -> None:
    backlog = backlog_of(*rewards(1.0, -1.0, 0.01, 0.7, -0.7))
    assert [(reward.value, why) for reward, why in backlog.trim(3)] == [(0.01, "uninformative"), (1.0, "backlog_full")]
    alike = backlog_of(*rewards(1.0, 1.0, 1.0), *rewards(-1.0, 1.0, workload="fix"))
    assert [(reward.workload, why) for reward, why in alike.trim(3)] == [("write", "uninformative")] * 2
    assert left(alike) == [1.0, -1.0, 1.0]


def test_what_stands_alone_or_corrects_is_not_expected() -> None:
    alone, (first, second) = rewards(0.5, workload="chat"), rewards(1.0, 1.0)
    backlog = backlog_of(*alone, first, second)
    backlog.applied[first.inference_id] = applied(first)
    assert [reward.inference_id for reward, _ in backlog.trim(2)] == [second.inference_id]


def applied(reward: Reward) -> Applied:
    return Applied(
        revision=-1,
        reward=0.0,
        follow=0.0,
        credits=(),
        scale=1.0,
        version=1,
        received_at=reward.decided_at,  # type: ignore[arg-type]
    )


def test_they_are_counted_by_reason(make_world: MakeWorld) -> None:
    world = make_world("world")
    values = [0.0] * 3 + [1.0, -1.0] * 4
    turns = [make_turn(number) for number in range(len(values))]
    learner = world.learner(settings={"batch.backlog_turns": 8})
    world.tell(*((turn, make_reward(turn, value)) for turn, value in zip(turns, values, strict=True)))
    settle(learner)
    (only,) = manifests(world)
    assert {why: len(ids) for why, ids in only.drops.items()} == {"uninformative": 2, "backlog_full": 1}
    assert len(only.turns) == 8
    learner.close()


@pytest.mark.parametrize(
    ("ids", "why"),
    [((0, 5, 99), None), ((0, 5, 100), "unknown_tokens"), ((-1, 5, 99), "unknown_tokens")],
    ids=["all of them", "one beyond the last", "one before the first"],
)
def test_a_turn_is_of_tokens_that_the_model_has(ids: tuple[int, ...], why: str | None) -> None:
    turn = msgspec.structs.replace(make_turn(0), prompt_token_ids=ids)
    turn = msgspec.structs.replace(turn, token_ids=tuple(7 for _ in turn.token_ids))
    assert refusal(turn, make_reward(turn, 1.0), Bounds(vocabulary=100)) == why


@pytest.mark.parametrize(("room", "why"), [(0, None), (-1, "over_context")])
def test_a_turn_fits_into_the_context(room: int, why: str | None) -> None:
    turn = make_turn(0)
    length = len(turn.prompt_token_ids) + len(turn.token_ids)
    assert refusal(turn, make_reward(turn, 1.0), Bounds(context_length=length + room)) == why
