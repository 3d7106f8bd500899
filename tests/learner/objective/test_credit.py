"""The tokens and turns that a reward is credited to.

Legend: N sampled tokens."""

from collections.abc import Callable, Sequence

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from logged_world import World, logged_past, make_reward, make_turn, manifests, settle

from core.events import Completion, Credit, Reward
from core.ids import base_ref
from learner.objective.credit import applied, are_sound, credited, with_follow
from learner.sequences.joining import merge
from learner.sequences.scored import Applied, ScoredTurn
from learner.sequences.tensors import micro_batches
from learner.versions.manifest import prove_exactly_once
from learner.versions.provenance import applied_on

MakeWorld = Callable[[str], World]
HIDDEN = 4
Told = tuple[Completion, Reward]


def a_session(name: str, rewards: Sequence[float], purpose: str = "turn") -> list[Told]:
    """Return turns that each continue the one before."""
    told: list[Told] = []
    tokens: tuple[int, ...] = (1, 2, 3)
    for index, value in enumerate(rewards):
        turn = make_turn(
            index,
            session=name,
            turn_index=index,
            parent_id=told[-1][0].inference_id if told else None,
            prompt_token_ids=tokens,
            purpose=purpose,
        )
        tokens += (*turn.token_ids, 7)
        told.append((turn, make_reward(turn, value)))
    return told


def scored(told: Sequence[Told]) -> list[ScoredTurn]:
    return [ScoredTurn(turn, reward) for turn, reward in told]


# ------------------------------------------------------------------------------------------ turns


@given(st.lists(st.floats(-1, 1), min_size=1, max_size=6), st.floats(0, 1), st.randoms(use_true_random=False))
def test_a_turn_earns_of_those_after_it(rewards: list[float], discount: float, rng: object) -> None:
    batch = scored(a_session("a", rewards))
    order = list(range(len(batch)))
    rng.shuffle(order)  # type: ignore[attr-defined]
    found = with_follow([batch[place] for place in order], discount)
    for place, turn in zip(order, found, strict=True):
        expected = sum(reward * discount**later for later, reward in enumerate(rewards[place:]))
        assert turn.worth == pytest.approx(expected, rel=1e-9, abs=1e-12)
        assert turn.reward == batch[place].reward


def test_branches_count_in_the_mean_and_asides_not_at_all() -> None:
    root, left = a_session("a", [0.0, 1.0])
    right = msgspec.structs.replace(make_turn(5), turn_index=1, parent_id=root[0].inference_id)
    aside = msgspec.structs.replace(make_turn(6), turn_index=1, parent_id=root[0].inference_id, purpose="side")
    batch = scored([root, left, (right, make_reward(right, 0.5)), (aside, make_reward(aside, -1.0))])
    assert [turn.follow for turn in with_follow(batch, 0.5)] == [0.5 * 0.75, 0, 0, 0]


def test_a_summary_is_a_step_of_the_work_that_goes_on_from_it() -> None:
    batch = scored(a_session("a", [0.0, 0.0, 1.0]))
    summary = msgspec.structs.replace(batch[1].turn, purpose="summary")
    batch[1] = ScoredTurn(summary, batch[1].reward)
    assert [turn.worth for turn in with_follow(batch, 0.5)] == [0.25, 0.5, 1.0]


def test_a_correction_keeps_what_followed_then() -> None:
    (turn, reward) = a_session("a", [1.0])[0]
    before = Applied(revision=0, reward=0.5, follow=0.25, scale=1.0, version=base_ref(2), received_at=turn.received_at)
    (found,) = with_follow([ScoredTurn(turn, reward, before)], 0.5)
    assert (found.follow, found.worth) == (0.25, 1.25)


def test_what_is_void_gets_nothing_of_what_followed_and_adds_nothing() -> None:
    batch = scored(a_session("a", [0.0, 0.0, 1.0]))
    gone = batch[1]
    before = Applied(
        revision=0, reward=0.5, follow=0.5, scale=1.0, version=base_ref(2), received_at=gone.turn.received_at
    )
    batch[1] = ScoredTurn(gone.turn, msgspec.structs.replace(gone.reward, void=True), before)
    assert [turn.follow for turn in with_follow(batch, 0.5)] == [0, 0, 0]


def test_a_session_earns_together_and_is_corrected_exactly(make_world: MakeWorld) -> None:
    world = make_world("a")
    learner = world.learner(
        settings={"advantage.turn_discount": 0.5, "admission.max_divergence": 1e9, "admission.min_ess": 0.0}
    )
    told = a_session("a", [0.0, 0.0, 1.0])
    world.tell(*told, *logged_past(5))
    settle(learner)
    world.tell(*[(turn, make_reward(turn, -1.0, revision=1, after_s=30)) for turn, _ in [*told[2:], *logged_past(5)]])
    settle(learner)
    world.tell(*[(turn, make_reward(turn, 0.5, revision=2, after_s=60)) for turn, _ in [*told, *logged_past(5)]])
    settle(learner)
    lineage = manifests(world)
    assert prove_exactly_once(lineage) == 8 + 6 + 8
    credits = {turn.inference_id: 0.0 for turn, _ in told}
    for record in (record for one in lineage for record in one.turns if record.inference_id in credits):
        credits[record.inference_id] += record.credit
    first = {record.inference_id: record for record in lineage[0].turns}
    last = {record.inference_id: record for record in lineage[2].turns}
    for (turn, _), follow, finally_ in zip(told, (0.25, 0.5, 0.0), (0.375, 0.25, 0.0), strict=True):
        record = first[turn.inference_id]
        assert record.follow == follow
        assert last[turn.inference_id].follow == finally_
        assert credits[turn.inference_id] == pytest.approx((0.5 + finally_ - record.baseline) / record.scale, rel=1e-5)
    read = applied_on([one.version for one in lineage], world.blobs)
    assert {key: (a.reward, a.follow) for key, a in read.items()} == {
        key: (a.reward, a.follow) for key, a in learner._backlog.applied.items()
    }
    learner.close()


# ------------------------------------------------------------------------------------------ tokens


def test_credits_take_the_place_of_the_reward_on_their_tokens() -> None:
    plain, (turn, reward) = make_turn(1, session="b"), a_session("a", [0.5])[0]
    named = (Credit(start=2, end=4, value=-1.0), Credit(start=4, end=5, value=1.0))
    batch = [
        ScoredTurn(plain, make_reward(plain, 0.25)),
        ScoredTurn(turn, msgspec.structs.replace(reward, credits=named), follow=0.25),
    ]
    (part,) = micro_batches(merge(batch), batch, 512, "cpu")
    found = credited(part, batch)
    mine_N = part.turns_N == 1
    assert found.rewards_N[mine_N].tolist() == [0.75] * 2 + [-0.75] * 2 + [1.25] + [0.75] * 7
    assert found.rewards_N[~mine_N].tolist() == [0.25] * 12
    assert applied(part, batch).rewards_N.tolist() == [0.0] * 24


def test_credits_are_corrected_exactly(make_world: MakeWorld) -> None:
    """The advantages of both updates add up to those of the latest credits alone."""
    totals = {}
    for name in ("at once", "corrected"):
        world = make_world(name)
        learner = world.learner()
        past = logged_past(8)
        named = (Credit(start=0, end=6, value=1.0),)
        if name == "corrected":
            early = (Credit(start=3, end=12, value=-0.5),)
            world.tell(*[(turn, msgspec.structs.replace(reward, credits=early)) for turn, reward in past])
            settle(learner)
        world.tell(*[(turn, msgspec.structs.replace(make_reward(turn, 0.5, 1, 30), credits=named)) for turn, _ in past])
        settle(learner)
        totals[name] = [
            sum(
                record.credit * record.scale
                for one in manifests(world)
                for record in one.turns
                if record.inference_id == t
            )
            for t in (turn.inference_id for turn, _ in past)
        ]
        learner.close()
    assert totals["corrected"] == pytest.approx(totals["at once"], rel=1e-5)


def test_credits_that_make_no_sense_never_train(make_world: MakeWorld) -> None:
    turn = make_turn(0)
    for ends, value in (((5, 13), 1.0), ((5, 5), 1.0), ((-1, 3), 1.0), ((0, 3), float("nan"))):
        assert not are_sound([Credit(start=ends[0], end=ends[1], value=value)], turn)
    twice = [Credit(start=0, end=4, value=1.0), Credit(start=3, end=6, value=1.0)]
    assert not are_sound(twice, turn)
    assert are_sound([], turn)
    world = make_world("a")
    learner = world.learner()
    past = logged_past(9)
    world.tell((past[0][0], msgspec.structs.replace(past[0][1], credits=tuple(twice))), *past[1:])
    settle(learner)
    (only,) = manifests(world)
    assert only.drops == {"bad_credits": (past[0][0].inference_id,)}
    learner.close()
