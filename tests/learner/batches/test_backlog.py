"""Feedback arrives faster than it is learned from: the turns that would teach least are dropped and counted."""

from collections.abc import Callable
from datetime import timedelta

import msgspec
import pytest
from logged_world import World, make_reward, make_turn, manifests, settle

from core.events import Credit, Hint, Reward, TextEdit
from core.ids import OutcomeId, base_ref
from core.settings import DemonstrationSettings, LearnerSettings, WordsSettings
from learner.batches.backlog import Backlog, Bounds, adds_nothing, refusal
from learner.sequences.scored import Applied, DemonstrationRecord, ScoredTurn, Taught, TurnRecord

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


def test_what_says_more_than_a_number_is_not_expected() -> None:
    plain, edited, credited, hinted = rewards(1.0, 1.0, 1.0, 1.0)
    edited = msgspec.structs.replace(edited, edits=(TextEdit(start=0, end=1, token_ids=(5,)),))
    credited = msgspec.structs.replace(credited, credits=(Credit(start=0, end=1, value=-1.0),))
    hinted = msgspec.structs.replace(hinted, hints=(Hint(start=0, end=1, text="no", outcome_id=OutcomeId("a")),))
    backlog = backlog_of(edited, credited, hinted, plain)
    assert backlog.trim(3) == [(plain, "uninformative")]


@pytest.mark.parametrize(("days", "is_known"), [(2, True), (89, True), (91, False)])
def test_a_text_is_remembered_longer_than_a_reward(days: int, is_known: bool) -> None:
    """So that it is taken back when its user withdraws it."""
    backlog, (told, plain, newest) = Backlog(), rewards(1.0, 1.0, 1.0)
    taught = Taught(edits=(TextEdit(start=0, end=1, token_ids=(5,)),), weight=1.0)
    backlog.applied[told.inference_id] = msgspec.structs.replace(applied(told), taught=taught)
    backlog.applied[plain.inference_id] = applied(plain)
    later = msgspec.structs.replace(newest, decided_at=newest.decided_at + timedelta(days=days))
    backlog.enter([ScoredTurn(make_turn(2), later)], [left_out(later)], base_ref(2), LearnerSettings())
    assert (told.inference_id in backlog.applied) is is_known
    assert plain.inference_id not in backlog.applied


def left_out(reward: Reward) -> TurnRecord:
    return TurnRecord(
        inference_id=reward.inference_id,
        revision=reward.revision,
        reward=reward.value,
        applied_revision=None,
        baseline=0.0,
        scale=1.0,
        credit=0.0,
        divergence=0.0,
        dropped="too_old",
    )


def test_a_comment_on_what_an_update_left_out_is_nothing_new() -> None:
    """Its reward would teach the baseline once more. Where words train, or the text is another, it is."""
    turn = make_turn(0)
    edits = (TextEdit(start=0, end=1, token_ids=(5,)),)
    reward = msgspec.structs.replace(make_reward(turn, 0.5), edits=edits)
    too_old = msgspec.structs.replace(left_out(reward), demonstration=DemonstrationRecord(dropped="too_old"))
    backlog, settings = Backlog(), LearnerSettings()
    backlog.enter([ScoredTurn(turn, reward)], [too_old], base_ref(2), settings)
    said = (Hint(start=0, end=1, text="no", outcome_id=OutcomeId("a")),)
    again = msgspec.structs.replace(reward, revision=1, hints=said)
    assert backlog.add(again)
    scored = backlog.scored(again, turn)
    assert not scored.is_correction
    assert adds_nothing(scored, settings)
    assert not adds_nothing(scored, LearnerSettings(words=WordsSettings(weight=1.0)))
    assert not adds_nothing(backlog.scored(msgspec.structs.replace(again, edits=()), turn), settings)
    assert not adds_nothing(backlog.scored(msgspec.structs.replace(again, value=0.6), turn), settings)
    trained = msgspec.structs.replace(left_out(again), dropped=None, demonstration=too_old.demonstration)
    backlog.enter([scored], [trained], base_ref(3), settings)
    assert adds_nothing(backlog.scored(msgspec.structs.replace(again, revision=2), turn), settings)


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


@pytest.mark.parametrize(("namespaces", "is_left_out"), [(None, False), (("default",), False), ((), True)])
def test_words_are_something_new_where_they_train(namespaces: tuple[str, ...] | None, is_left_out: bool) -> None:
    turn = make_turn(0)
    reward = make_reward(turn, 0.5, revision=1)
    hinted = msgspec.structs.replace(reward, hints=(Hint(start=0, end=1, text="no", outcome_id=OutcomeId("a")),))
    before = msgspec.structs.replace(applied(reward), reward=0.5)
    assert turn.namespace == "default"
    settings = LearnerSettings(words=WordsSettings(weight=1.0, namespaces=namespaces))
    assert adds_nothing(ScoredTurn(turn, hinted, before), settings) is is_left_out
    assert adds_nothing(ScoredTurn(turn, hinted, before), LearnerSettings())
    edited = msgspec.structs.replace(reward, edits=(TextEdit(start=0, end=1, token_ids=(5,)),))
    assert not adds_nothing(ScoredTurn(turn, edited, before), LearnerSettings())
    assert adds_nothing(
        ScoredTurn(turn, edited, before), LearnerSettings(demonstrations=DemonstrationSettings(weight=0.0))
    )
    assert not adds_nothing(ScoredTurn(turn, hinted), LearnerSettings())


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
