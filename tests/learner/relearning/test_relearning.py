"""Excluded turns are unlearned: what is left is, to the bit, what a learner has that was never given them."""

from collections.abc import Callable, Sequence
from datetime import timedelta

import pytest
from excluded_users import (
    MALLORY,
    USUAL,
    Pair,
    came_of,
    digest,
    exclude,
    of_user,
    order,
    rounds,
    states,
    teach,
    trained_on,
    without,
)
from logged_world import World, lineage_of_newest, logged_past, make_reward, manifests, settle
from msgspec.structs import replace
from sqlalchemy import delete
from stepping import step

from core.errors import WeightsError
from core.events import TextEdit
from core.ids import UserHash, base_ref
from core.store.database import tables
from core.store.policies import UNOFFERED
from learner.reliving import Reliving
from learner.versions.manifest import Manifest, prove_exactly_once

MakeWorld = Callable[[str], World]


def taught_without(make_world: MakeWorld, name: str, *users: str, past: Sequence[Sequence[Pair]] = ()) -> str:
    """Return the digest of a learner that was never given these users' turns."""
    world = make_world(name)
    learner = world.learner(settings=USUAL)
    teach(world, learner, without(past or rounds(), *users))
    learner.close()
    return digest(world, learner.newest)


def test_what_is_left_is_what_a_learner_has_that_never_had_it(make_world: MakeWorld) -> None:
    world = make_world("a")
    learner = world.learner(settings=USUAL)
    past = rounds()
    teach(world, learner, past)
    assert learner.newest == base_ref(6)
    number = exclude(world)
    settle(learner)
    assert learner.newest == base_ref(10)
    assert digest(world, learner.newest) == taught_without(make_world, "b", "mallory") != digest(world, base_ref(6))
    mallorys = {turn.inference_id for each in past for turn, _ in each if turn.user_id == MALLORY}
    assert len(mallorys) == 3
    assert not mallorys & trained_on(world)
    lineage = lineage_of_newest(world)
    assert [made.again and made.again.version for made in lineage] == [None, 3, 4, 5, 6]
    assert [len(made.turns) for made in lineage] == [8, 6, 8, 7, 8]
    assert {each for made in lineage for each in made.drops.get("excluded", ())} == mallorys
    assert prove_exactly_once(lineage) == 37
    assert states(world) == {
        **dict.fromkeys(range(2, 7), "candidate"),
        **dict.fromkeys(range(7, 10), UNOFFERED),
        1: "live",
        10: "candidate",
    }
    with world.store.look() as view:
        again = [policy.again and policy.again.version for policy, _ in view.policies.newest(5)]
    assert again == [6, 5, 4, 3, None]
    told = came_of(world, number)
    assert (told.first_use, told.start, told.updates, told.made_again) == (base_ref(3), base_ref(2), 4, 4)
    assert (told.version, told.emptied + told.lost, told.left_s, told.note) == (base_ref(10), 0, 0.0, "")
    assert told.ended_at is not None
    learner.close()


def test_it_trains_on_neither_early_nor_late(make_world: MakeWorld) -> None:
    """New turns, corrections and what waited are kept out, also after a restart; others go on as before."""
    world, other = make_world("a"), make_world("b")
    past, later = rounds()[:4], of_user(logged_past(8, seed=9), {1: "mallory", 6: "mallory"})
    learner = world.learner(settings=USUAL)
    teach(world, learner, past)
    exclude(world)
    settle(learner)
    corrections = [
        (turn, make_reward(turn, 0.9, revision=1, after_s=60))
        for turn, _ in (past[1][2], past[1][3], past[1][4], past[3][0])
    ]
    teach(world, learner, [later])
    learner.close()
    learner = world.learner(settings=USUAL)
    teach(world, learner, [corrections])
    learner.close()
    assert dict(learner.left_out) == {"excluded": 2}
    never = other.learner(settings=USUAL)
    teach(other, never, without([*past, later, corrections], "mallory"))
    never.close()
    assert digest(world, learner.newest) == digest(other, never.newest)


def test_what_excluded_users_said_of_others_turns_is_unlearned_and_trains_no_more(make_world: MakeWorld) -> None:
    """A text in the place of Alice's answer, and a later verdict on another; her turns stay as they were before."""
    world, other = make_world("a"), make_world("b")
    past = [of_user(logged_past(count, seed=seed), {}) for seed, count in enumerate((8, 7, 8))]
    (turn, reward), plain = past[0][3], past[0][4:6]
    text = (TextEdit(start=2, end=4, token_ids=(60, 61)),)
    edited = replace(make_reward(turn, reward.value, 1, 30.0), edits=text, edited_by=MALLORY, said_by=(MALLORY,))
    both = (UserHash("alice"), MALLORY)
    judged = [(each, replace(make_reward(each, -1.0, 1, 30.0), said_by=both)) for each, _ in plain]
    learner = world.learner(settings=USUAL)
    teach(world, learner, [past[0], [*past[1], (turn, edited)], past[2]])
    assert digest(world, learner.newest) != taught_without(make_world, "c", past=past)
    number = exclude(world)
    settle(learner)
    teach(world, learner, [judged])
    assert dict(learner.left_out) == {"excluded": 2}
    told = came_of(world, number)
    assert (told.first_use, told.start) == (base_ref(3), base_ref(2))
    assert not any(MALLORY in reward.said_by for made in lineage_of_newest(world) for reward in made.rewards)
    learner.close()
    never = other.learner(settings=USUAL)
    teach(other, never, past)
    never.close()
    assert digest(world, learner.newest) == digest(other, never.newest)


def test_two_orders_at_once_are_obeyed_together(make_world: MakeWorld) -> None:
    world = make_world("a")
    past = rounds()[:3]
    past[2] = of_user(past[2], {4: "eve"})
    learner = world.learner(settings=USUAL)
    teach(world, learner, past)
    first, second = exclude(world, users=(UserHash("eve"),)), exclude(world)
    settle(learner)
    assert digest(world, learner.newest) == taught_without(make_world, "b", "mallory", "eve", past=past)
    assert learner.newest == base_ref(6), "two updates, each once"
    for number in (first, second):
        assert (came_of(world, number).start, came_of(world, number).version) == (base_ref(2), base_ref(6))
    learner.close()


def test_an_order_amid_another_ones_work_goes_back_as_far_as_it_must(make_world: MakeWorld) -> None:
    world = make_world("a")
    past = rounds()
    past[2], past[4] = of_user(past[2], {4: "eve"}), of_user(past[4], {4: "eve"})
    learner = world.learner(settings=USUAL)
    teach(world, learner, past)
    first = exclude(world)
    while len(manifests(world)) < 7:  # two of the four
        step(learner, 0.0)
    second = exclude(world, users=(UserHash("eve"),))
    settle(learner)
    assert digest(world, learner.newest) == taught_without(make_world, "b", "mallory", "eve", past=past)
    assert came_of(world, second).first_use == base_ref(8), "the second update of the new line"
    assert came_of(world, first).ended_at is not None
    assert prove_exactly_once(lineage_of_newest(world)) == 35
    learner.close()


def test_what_nothing_was_learned_from_says_so_and_is_kept_out_from_then_on(make_world: MakeWorld) -> None:
    world = make_world("a")
    learner = world.learner(settings=USUAL)
    teach(world, learner, rounds()[:2])
    number = exclude(world, users=(UserHash("eve"),))
    settle(learner)
    assert learner.newest == base_ref(3)
    told = came_of(world, number)
    assert told.note == "no version of the learner's line learned from it: nothing is made again"
    assert told.ended_at is not None
    teach(world, learner, [of_user(logged_past(8, seed=9), {1: "eve"})])
    assert dict(learner.left_out) == {"excluded": 1}
    learner.close()


def test_what_is_included_again_trains_from_then_on(make_world: MakeWorld) -> None:
    world = make_world("a")
    learner = world.learner(settings=USUAL)
    teach(world, learner, rounds()[:2])
    number = exclude(world)
    settle(learner)
    before = of_user(logged_past(4, seed=8), {1: "mallory"})
    teach(world, learner, [before])
    with world.store.work() as work:
        assert work.exclusions.lift(number, "it was a test", "ops", world.clock.now() + timedelta(seconds=1))
        assert not work.exclusions.lift(number, "again", "eve", world.clock.now() + timedelta(seconds=9))
    late = [(turn, make_reward(turn, 0.5, revision=1, after_s=90)) for turn, _ in before[:2]]
    teach(world, learner, [late])
    learner.close()
    assert order(world, number).lifted_why == "it was a test"
    used = {record.inference_id: record.applied_revision for record in lineage_of_newest(world)[-1].turns}
    assert used == {before[0][0].inference_id: 0, before[1][0].inference_id: None}


def test_where_nothing_else_was_learned_the_version_before_is_what_is_left(make_world: MakeWorld) -> None:
    world = make_world("a")
    learner = world.learner(settings=USUAL)
    past = [of_user(logged_past(8, seed=0), {}), of_user(logged_past(8, seed=1), dict.fromkeys(range(8), "mallory"))]
    teach(world, learner, past)
    number = exclude(world)
    settle(learner)
    assert learner.newest == base_ref(2)
    assert came_of(world, number).note == (
        "nothing else was learned since: version 2 is what is left of it; roll back to it"
    )
    learner.close()


def test_an_update_that_cannot_be_made_again_is_left_out_and_counted(
    make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    world = make_world("a")
    learner = world.learner(settings=USUAL)
    past = rounds()[:4]
    teach(world, learner, past)
    gone = [turn.inference_id for turn, _ in past[2]]
    with world.store.begin() as connection:
        connection.execute(delete(tables.turns).where(tables.turns.c.inference_id.in_(gone)))
    again = Reliving.live_again

    def live_again(self: Reliving, made: Manifest) -> object:
        if made.again == base_ref(3):
            raise WeightsError("the anchor's weights are gone")
        return again(self, made)

    monkeypatch.setattr(Reliving, "live_again", live_again)
    number = exclude(world)
    settle(learner)
    learner.close()
    told = came_of(world, number)
    assert (told.updates, told.made_again, told.emptied, told.lost, told.version) == (3, 1, 0, 2, learner.newest)
    assert [made.again and made.again.version for made in lineage_of_newest(world)] == [None, 5]
    assert "the update of version 3 is left out: the anchor's weights are gone" in caplog.text
