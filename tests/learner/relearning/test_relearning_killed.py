"""A learner that is killed while it unlearns goes on where it stood: nothing is lost, and nothing done twice."""

import subprocess
from collections.abc import Callable
from random import Random

import msgspec
from killed_learners import SETTINGS, kill_at_work, learners
from logged_world import World, lineage_of_newest, logged_past, manifests, settle

from core.ids import Namespace, PolicyRef, UserHash
from core.operations.exclusions import Relearning, Selection
from learner.versions.manifest import prove_exactly_once

__all__ = ["learners"]  # a fixture
MakeWorld = Callable[[str], World]


def taught(world: World) -> PolicyRef | None:
    """Teach it 24 turns by 6 updates, of which Mallory's are in the second and the fifth, and exclude these."""
    past = logged_past(24)
    users = [UserHash("mallory" if place in (5, 18) else "alice") for place in range(len(past))]
    told = [(msgspec.structs.replace(turn, user_id=u), reward) for (turn, reward), u in zip(past, users, strict=True)]
    world.tell(*told)
    learner = world.learner(settings=SETTINGS)
    settle(learner)
    learner.close()
    with world.store.work() as work:
        chosen = Selection(namespace=Namespace("default"), users=(UserHash("mallory"),))
        assert work.exclusions.give(chosen, "a siege", "ops", world.clock.now()) == 1
    return learner.newest


def unlearned(world: World) -> tuple[str, Relearning]:
    """Return the newest version's digest once there is nothing left to do, and what was told of it."""
    learner = world.learner(settings=SETTINGS)
    settle(learner)
    learner.close()
    with world.store.look() as view:
        ((policy, state),) = view.policies.newest(1)
        order = view.exclusions.get(1)
    assert state == "candidate"
    assert order is not None
    assert order.relearning is not None
    return policy.digest, order.relearning


def test_killed_amid_it_again_and_again_it_comes_to_the_same_bits(
    make_world: MakeWorld, learners: "subprocess.Popen[str]"
) -> None:
    world, undisturbed = make_world("a"), make_world("b")
    assert taught(world) == taught(undisturbed)
    moment = Random(3)
    for more in (0, 1, 2):
        kill_at_work(learners, world, more, moment)
    digest, told = unlearned(world)
    assert digest == unlearned(undisturbed)[0]
    updates = (told.updates, told.made_again, told.emptied + told.lost)
    assert updates == (len(manifests(world)) - 6, 5, 0), "each update once"
    assert told.ended_at is not None
    lineage = lineage_of_newest(world)
    assert len(lineage) == 6
    assert prove_exactly_once(lineage) > 15
    used = [reward.inference_id for made in lineage for reward in made.rewards]
    assert len(used) == len(set(used)) == 22
