"""Feedback arrives faster than it is learned from: the oldest is dropped and counted, and the newest trains."""

from collections.abc import Callable
from datetime import UTC, datetime

import msgspec
import pytest
from logged_world import World, logged_past, make_reward, make_turn, manifests, settle

from core.events import Credit, Hint, Reward, TextEdit
from core.ids import OutcomeId, UserHash, base_ref
from core.settings import BatchSettings
from learner.batches.backlog import Backlog, Bounds, refusal
from learner.sequences.scored import Applied

MakeWorld = Callable[[str], World]


def rewards(*values: float, workload: str = "write") -> list[Reward]:
    return [make_reward(make_turn(number, workload=workload), value) for number, value in enumerate(values)]


def backlog_of(*waiting: Reward) -> Backlog:
    backlog = Backlog()
    assert all(map(backlog.add, waiting))
    return backlog


def chosen(backlog: Backlog, turns: int, room: int) -> list[Reward]:
    return backlog.choose(BatchSettings(turns=turns, min_turns=2, backlog_turns=room), datetime.now(UTC))


def left(backlog: Backlog) -> list[float]:
    return [reward.value for reward in backlog.pending.values()]


def test_beyond_its_bound_the_oldest_go_whatever_they_say() -> None:
    backlog = backlog_of(*rewards(1.0, -1.0, 0.01, 0.7, 0.01))
    assert backlog.trim(5) == []
    assert [(reward.value, why) for reward, why in backlog.trim(3)] == [(1.0, "backlog_full"), (-1.0, "backlog_full")]
    assert left(backlog) == [0.01, 0.7, 0.01]


def test_an_update_takes_what_would_stay() -> None:
    """Ten turns wait, which is the most, and an update takes three: of seven more, four would have no room."""
    backlog = backlog_of(*rewards(*(n / 10 for n in range(10))))
    for come, first in ((0, 0.0), (3, 0.0), (7, 0.4), (10, 0.7), (1000, 0.7)):
        backlog.come = come
        assert chosen(backlog, 3, 10)[0].value == first
    assert [reward.value for reward in chosen(backlog, 8, 12)] == [n / 10 for n in range(2, 10)]
    backlog.remove(chosen(backlog, 9, 10))
    assert len(chosen(backlog, 3, 10)) == 1, "what is left is a smaller batch, whatever came"


def test_what_says_the_same_of_all_tokens_trains_nothing_more() -> None:
    """A comment on what has trained takes no turn's place in an update, and what is taken back needs none."""
    (first,) = rewards(0.5)
    blamed = msgspec.structs.replace(first, revision=1, credits=(Credit(start=0, end=1, value=-0.5),))
    hint = Hint(start=0, end=1, text="too long", outcome_id=OutcomeId("said"))
    commented = msgspec.structs.replace(first, revision=2, hints=(hint,))
    backlog = Backlog()
    backlog.resume({first.inference_id: applied(first)})
    assert not backlog.add(msgspec.structs.replace(commented, revision=1))
    assert backlog.add(blamed)
    assert not backlog.add(commented)
    assert backlog.pending == {}
    assert backlog.add(msgspec.structs.replace(commented, revision=3, value=0.4))
    assert [reward.hints for reward in backlog.pending.values()] == [()], "manifests have nobody's words"


def test_what_users_wrote_trains_nothing(make_world: MakeWorld) -> None:
    """A text that a user made of the answer, and words about it, change no bit of what the turn's own tokens teach."""
    edit = TextEdit(start=0, end=12, token_ids=(7, 8, 9))
    hint = Hint(start=0, end=3, text="no, use our logger", outcome_id=OutcomeId("said"))
    said = {"edits": (edit,), "edited_by": UserHash("ada"), "hints": (hint,)}
    made = []
    for name, words in (("silent", {}), ("written", said)):
        world = make_world(name)
        learner = world.learner()
        world.tell(*((turn, msgspec.structs.replace(reward, **words)) for turn, reward in logged_past(8)))
        settle(learner)
        learner.close()
        (only,) = manifests(world)
        published = learner._reliving.published(only.version)
        assert published is not None
        made.append((published.digest, only.turns, only.rewards))
    assert made[0] == made[1]


def applied(reward: Reward) -> Applied:
    return Applied(
        revision=reward.revision,
        reward=reward.value,
        credits=reward.credits,
        scale=1.0,
        version=base_ref(1),
        received_at=reward.decided_at,
    )


def test_what_is_dropped_is_counted(make_world: MakeWorld) -> None:
    world = make_world("world")
    values = [0.0] * 3 + [1.0, -1.0] * 4
    turns = [make_turn(number) for number in range(len(values))]
    learner = world.learner(settings={"batch.backlog_turns": 8})
    world.tell(*((turn, make_reward(turn, value)) for turn, value in zip(turns, values, strict=True)))
    settle(learner)
    (only,) = manifests(world)
    assert {why: len(ids) for why, ids in only.drops.items()} == {"backlog_full": 3}
    assert len(only.turns) == 8
    learner.close()


def test_users_who_are_held_back_train_nothing(make_world: MakeWorld) -> None:
    """Also while the first version is all there is: what a turn is for does not change with the versions."""
    world = make_world("world")
    arms = ["holdback"] * 3 + ["live", "canary"] * 4
    turns = [make_turn(number, arm=arm, arm_assigned=arm) for number, arm in enumerate(arms)]
    learner = world.learner()
    world.tell(*((turn, make_reward(turn, float(number % 2))) for number, turn in enumerate(turns)))
    settle(learner)
    (only,) = manifests(world)
    assert {record.inference_id for record in only.turns} == {turn.inference_id for turn in turns[3:]}
    assert only.drops == {"held_back": tuple(turn.inference_id for turn in turns[:3])}
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
