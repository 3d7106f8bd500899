"""What is released while a learner unlearns, and what becomes of a version that is refused."""

from collections.abc import Callable

from excluded_users import USUAL, came_of, digest, exclude, of_user, rounds, states, teach, trained_on, without
from logged_world import World, lineage_of_newest, logged_past, manifests, settle
from stepping import step

from core.ids import base_ref

MakeWorld = Callable[[str], World]


def test_a_live_version_that_learned_from_it_serves_and_is_not_built_upon(make_world: MakeWorld) -> None:
    world = make_world("a")
    learner = world.learner(settings=USUAL)
    past = rounds()[:3]
    teach(world, learner, past)
    world.release(4)
    settle(learner)
    exclude(world)
    settle(learner)
    assert learner.newest == base_ref(6)
    teach(world, learner, [of_user(logged_past(8, seed=8), {})])
    learner.close()
    learner = world.learner(settings=USUAL)  # another one, which is not told again
    teach(world, learner, [of_user(logged_past(8, seed=9), {})])
    assert [made.version.version for made in lineage_of_newest(world)] == [2, 5, 6, 7, 8]
    world.release(8, "live")
    settle(learner)
    assert learner.newest == base_ref(8)
    learner.close()


def test_a_refused_version_is_left_for_the_one_before_the_first_use(make_world: MakeWorld) -> None:
    world = make_world("a")
    learner = world.learner(settings=USUAL)
    past = rounds()[:3]
    teach(world, learner, past)
    world.release(4)
    exclude(world)
    settle(learner)
    world.release(6, "rejected")
    settle(learner)
    assert learner.newest == base_ref(2)
    teach(world, learner, [of_user(logged_past(8, seed=8), {})])
    assert [made.version.version for made in lineage_of_newest(world)] == [2, 7]
    assert not {turn.inference_id for turn, _ in past[1]} & trained_on(world)
    learner.close()


def test_a_rollback_to_the_version_before_loses_nothing_of_the_others(make_world: MakeWorld) -> None:
    """The order comes first, as console and command line give it; the releases follow amid the work."""
    world, never = make_world("a"), make_world("b")
    learner = world.learner(settings=USUAL)
    past = rounds()[:3]
    teach(world, learner, past)
    world.release(2)
    world.release(4)
    number = exclude(world)
    for version in (4, 3):
        world.release(version, "rolled_back")
    world.release(2)
    while len(manifests(world)) < 4:
        step(learner, 0.0)
    settle(learner)
    other = never.learner(settings=USUAL)
    teach(never, other, without(past, "mallory"))
    assert digest(world, learner.newest) == digest(never, other.newest)
    assert came_of(world, number).version == base_ref(6)
    assert states(world)[6] == "candidate"
    for each in (learner, other):
        each.close()


def test_a_rollback_beyond_it_ends_the_work(make_world: MakeWorld) -> None:
    world = make_world("a")
    learner = world.learner(settings=USUAL)
    teach(world, learner, rounds()[:3])
    number = exclude(world)
    while len(manifests(world)) < 4:  # one of two
        step(learner, 0.0)
    for version in (4, 3, 2):
        world.release(version, "rolled_back")
    world.release(1)
    settle(learner)
    assert learner.newest == base_ref(1)
    assert came_of(world, number).note == "version 1 is gone on from instead"
    assert states(world)[5] == "unoffered"
    learner.close()
