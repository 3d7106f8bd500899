"""A learner that is killed at random moments, over and over, trains on everything once, to the same weights."""

import subprocess
from collections.abc import Callable
from random import Random

import pytest
from killed_learners import SETTINGS, kill_at_work, learners
from logged_world import World, lineage_of_newest, logged_past, manifests, publications, settle

from learner.versions.manifest import Manifest, prove_exactly_once

__all__ = ["learners"]  # a fixture
MakeWorld = Callable[[str], World]


def settled(world: World) -> list[Manifest]:
    """Return the lineage once there is nothing left to learn."""
    last = world.learner(settings=SETTINGS)
    settle(last)
    last.close()
    return lineage_of_newest(world)


def digests(world: World, lineage: list[Manifest]) -> list[str]:
    with world.store.look() as view:
        made = [view.policies.get(manifest.version) for manifest in lineage]
    return [policy.digest for policy in made if policy is not None]


@pytest.mark.parametrize("seed", [0, 1])
def test_killed_again_and_again_it_uses_everything_once_and_is_the_same_bit_for_bit(
    make_world: MakeWorld, learners: "subprocess.Popen[str]", seed: int
) -> None:
    world, undisturbed = make_world("a"), make_world("b")
    past = [pair for past_seed in range(4) for pair in logged_past(24, seed=past_seed)]
    for each in (world, undisturbed):
        each.tell(*past)
    moment = Random(seed)
    for more in (1, 4, 2, 6):
        kill_at_work(learners, world, more, moment)
    lineage = settled(world)
    made = digests(world, lineage)
    assert len(made) == len(past) // 4
    assert made == digests(undisturbed, settled(undisturbed))
    assert len(lineage) == len(manifests(world)) == len(past) // 4
    prove_exactly_once(lineage)
    used = [(record.inference_id, record.revision) for made in lineage for record in made.turns]
    assert len(used) == len(set(used))
    assert set(used) == {(reward.inference_id, reward.revision) for _, reward in past}
    versions = [made.version for made in lineage]
    assert versions == sorted(versions)
    assert set(versions) <= set(publications(world))
