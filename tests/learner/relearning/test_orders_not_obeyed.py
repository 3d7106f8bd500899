"""Orders that a learner does not obey: lifted before it saw them, or over a change of what trains."""

import shutil
from collections.abc import Callable

import pytest
from excluded_users import MALLORY, USUAL, came_of, digest, exclude, of_user, order, rounds, teach, trained_on
from logged_world import World, lineage_of_newest, logged_past, settle

from core.ids import UserHash, base_ref

MakeWorld = Callable[[str], World]


def lift(world: World, number: int) -> None:
    with world.store.work() as work:
        assert work.exclusions.lift(number, "a mistake", "ops", world.clock.now())


def learn_by_three_ranks(world: World) -> None:
    """Make version 2 by adapters of rank 2, version 3 of all weights, and version 4 by adapters of rank 4."""
    past = rounds()[:3]
    past[2] = of_user(past[2], {4: "eve"})
    for version, rank, some in zip((2, 3, 4), (2, 0, 4), past, strict=True):
        shutil.rmtree(world.directory / "learner", ignore_errors=True)
        learner = world.learner(settings={**USUAL, "lora.rank": rank})
        teach(world, learner, [some])
        learner.close()
        world.release(version)


def test_an_order_that_was_lifted_at_once_changes_nothing(make_world: MakeWorld) -> None:
    world, other = make_world("a"), make_world("b")
    past = rounds()[:3]
    learner = world.learner(settings=USUAL)
    teach(world, learner, past[:2])
    number = exclude(world)
    lift(world, number)
    teach(world, learner, past[2:])
    learner.close()
    assert order(world, number).is_withdrawn
    assert came_of(world, number).note == "it was lifted before a learner saw it: nothing was excluded"
    never = other.learner(settings=USUAL)
    teach(other, never, past)
    never.close()
    assert digest(world, learner.newest) == digest(other, never.newest)
    assert learner.newest == base_ref(4)


def test_one_that_was_lifted_after_a_learner_saw_it_is_obeyed_to_the_end(make_world: MakeWorld) -> None:
    world = make_world("a")
    learner = world.learner(settings=USUAL)
    teach(world, learner, rounds()[:3])
    number = exclude(world)
    learner.tick()
    lift(world, number)
    settle(learner)
    learner.close()
    assert (came_of(world, number).made_again, learner.newest) == (2, base_ref(6))


def test_over_a_change_of_what_trains_an_order_fails_and_says_why_and_the_learner_goes_on(
    make_world: MakeWorld, caplog: pytest.LogCaptureFixture
) -> None:
    """Adapters of rank 4 do not go on from those of rank 2."""
    world = make_world("a")
    learn_by_three_ranks(world)
    number = exclude(world)  # first used by version 3, of all weights; version 2 is of rank 2
    settings = {**USUAL, "lora.rank": 4}
    for _ in range(2):
        learner = world.learner(settings=settings)
        settle(learner)
        assert learner.newest == base_ref(4)
        told = came_of(world, number)
        assert (told.state, order(world, number).is_failed) == ("failed", True)
        assert told.ended_at is not None
        assert told.note.startswith("version 2 cannot be gone back to, so what was learned stays")
        assert "learner.lora.rank and alpha are 4 and 32, and 2 and 32 in the version to go on from" in told.note
        learner.close()
    learner = world.learner(settings=settings)
    later = of_user(logged_past(8, seed=9), {1: "mallory"})
    teach(world, learner, [later])
    learner.close()
    assert [made.version.version for made in lineage_of_newest(world)] == [2, 3, 4, 5]
    (mallorys,) = (turn.inference_id for turn, _ in later if turn.user_id == MALLORY)
    assert mallorys not in trained_on(world), "what comes is kept out"
    assert "orders 1 to exclude turns: version 2 cannot be gone back to" in caplog.text


def test_an_order_that_failed_stands_in_no_other_ones_way(make_world: MakeWorld) -> None:
    world = make_world("a")
    learn_by_three_ranks(world)
    first = exclude(world)
    learner = world.learner(settings={**USUAL, "lora.rank": 4})
    settle(learner)
    learner.close()
    second = exclude(world, users=(UserHash("eve"),))  # of version 4 alone
    learner = world.learner(settings={**USUAL, "lora.rank": 4})
    settle(learner)
    learner.close()
    assert (came_of(world, first).state, came_of(world, second).state) == ("failed", "taken")
    assert (came_of(world, second).start, came_of(world, second).version) == (base_ref(3), base_ref(5))


def test_the_weights_are_those_of_before_where_an_order_failed(make_world: MakeWorld) -> None:
    """The learner goes on as one that was told of no order."""
    worlds = [make_world("a"), make_world("b")]
    for world in worlds:
        learn_by_three_ranks(world)
        learner = world.learner(settings={**USUAL, "lora.rank": 4})
        settle(learner)
        if world is worlds[0]:
            exclude(world)
            settle(learner)
        teach(world, learner, [of_user(logged_past(8, seed=9), {})])
        learner.close()
    assert digest(worlds[0], base_ref(5)) == digest(worlds[1], base_ref(5))
