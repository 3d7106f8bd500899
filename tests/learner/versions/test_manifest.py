"""The summary of many updates has each turn once, as it last trained."""

from collections.abc import Callable

from logged_world import World, logged_past, make_reward, manifests, settle

from core.ids import base_ref
from learner.versions.manifest import as_one, encode, path_of, prove_exactly_once
from learner.versions.provenance import applied_on

MakeWorld = Callable[[str], World]


def test_what_several_updates_trained_stands_once_in_their_sum(make_world: MakeWorld) -> None:
    world = make_world("a")
    learner = world.learner()
    past = logged_past(16)
    world.tell(*past)
    settle(learner)
    world.release(2)
    world.release(3)
    turn, _ = past[0]
    world.tell((turn, make_reward(turn, -1.0, revision=1)), *logged_past(7, seed=5))  # a correction among others
    settle(learner)
    learner.close()
    updates = sorted(manifests(world), key=lambda made: made.version)
    assert len(updates) >= 3
    trained = {record.inference_id for made in updates for record in made.turns if record.dropped is None}

    one = as_one(updates, base_ref(9), base_ref(1))
    assert prove_exactly_once([one]) == len(trained) < sum(len(made.turns) for made in updates)
    assert {record.inference_id for record in one.turns} == trained
    world.blobs.put(path_of(base_ref(9)), encode(one))
    applied = applied_on([base_ref(1), base_ref(9)], world.blobs)
    assert applied.keys() == trained
    assert (applied[turn.inference_id].revision, applied[turn.inference_id].reward) == (1, -1.0)
    assert applied[turn.inference_id].version == base_ref(9)
