"""A moving anchor lets the model go as far as its users lead it, and bounds how fast."""

import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing

import pytest
import torch
from logged_world import MODEL, World, logged_past, settle

from core.ids import base_ref
from learner.model.policy_model import PolicyModel
from learner.stage import Learner
from learner.versions.lineage import Lineage

MakeWorld = Callable[[str], World]
MOVING: dict[str, object] = {"objective.kl.anchor_versions": 2, "optimizer.learning_rate": 2e-3}


def teach(world: World, learner: Learner, seed: int) -> float:
    """Learn one more version, which goes live at once; return its KL to the anchor while it learned."""
    world.tell(*logged_past(8, seed))
    settle(learner)
    version = learner.newest
    assert version is not None
    world.release(version.version)
    settle(learner)
    published = learner._reliving.published(version)
    assert published is not None
    return published.metrics["kl"]


def is_anchor(learner: Learner, version: int | None) -> bool:
    """Return whether the anchor is this version, by its number and by its weights."""
    state = learner._rank_group._state
    assert learner._lineage.anchor == (None if version is None else base_ref(version))
    if version is None:
        return state.anchor.is_given
    wanted, found = PolicyModel(MODEL, "cpu"), state.anchor.apart()
    wanted.load(learner._reliving.open(base_ref(version)).shards)
    return all(map(torch.equal, wanted.model.state_dict().values(), found.model.state_dict().values()))


def anchored_at_3(make_world: MakeWorld) -> World:
    """Return a world whose learner, which is closed, has moved its anchor to version 3."""
    world = make_world("world")
    learner = world.learner(settings=MOVING)
    for seed in range(3):
        teach(world, learner, seed)
    learner.close()
    return world


def test_by_default_it_stays_the_given_model(make_world: MakeWorld) -> None:
    world = make_world("world")
    learner = world.learner()
    far = [teach(world, learner, seed) for seed in range(4)]
    assert is_anchor(learner, None)
    assert far[0] < far[-1]
    learner.close()


def test_it_becomes_what_serves_every_so_many_versions(make_world: MakeWorld) -> None:
    world = make_world("world")
    learner = world.learner(settings={"objective.kl.anchor_versions": 2, "optimizer.learning_rate": 2e-3})
    far = [teach(world, learner, 0), teach(world, learner, 1)]
    assert is_anchor(learner, 3)
    assert teach(world, learner, 2) == pytest.approx(0.0, abs=1e-9), "it begins at its anchor"
    assert far[1] > 1e-6
    learner.close()
    again = world.learner(settings={"objective.kl.anchor_versions": 2, "optimizer.learning_rate": 2e-3})
    assert is_anchor(again, 3)
    again.close()


def test_where_adapters_train_it_becomes_an_adapter_in_the_policys_place(make_world: MakeWorld) -> None:
    world = make_world("world")
    settings: dict[str, object] = {"objective.kl.anchor_versions": 2, "optimizer.learning_rate": 4e-3, "lora.rank": 4}
    learner = world.learner(settings=settings)
    far = [teach(world, learner, 0), teach(world, learner, 1)]
    state = learner._rank_group._state
    assert learner._lineage.anchor == base_ref(3)
    assert not state.anchor.is_given
    assert teach(world, learner, 2) == pytest.approx(0.0, abs=1e-9), "it begins at its anchor"
    assert far[1] > 1e-6
    assert state.anchor._apart is None, "it is no model apart"
    learner.close()


def test_where_the_optimizer_begins_afresh_it_stays(make_world: MakeWorld) -> None:
    world = anchored_at_3(make_world)
    for checkpoint in (world.directory / "learner").glob("checkpoint-*"):
        shutil.rmtree(checkpoint)
    with closing(sqlite3.connect(world.directory / "store.db")) as store, store:
        store.execute("DELETE FROM turns")  # by their age: no version can be made again
    again = world.learner(settings=MOVING)
    assert again._afresh
    assert is_anchor(again, 3)
    again.close()


def test_without_the_anchors_weights_it_is_the_given_model_and_that_is_said(
    make_world: MakeWorld, caplog: pytest.LogCaptureFixture
) -> None:
    world = anchored_at_3(make_world)
    world.weights.discard(base_ref(3))
    again = world.learner(settings=MOVING)
    assert is_anchor(again, None)
    assert "holds to the given model from now on, and not to version 3" in caplog.text
    again.close()


def test_a_rollback_takes_it_back(make_world: MakeWorld) -> None:
    world = make_world("world")
    learner = world.learner(settings={"objective.kl.anchor_versions": 2})
    for seed in range(3):
        teach(world, learner, seed)
    assert is_anchor(learner, 3)
    for version in (4, 3):
        world.release(version, "rolled_back")
    world.release(2)
    teach(world, learner, 5)
    assert learner._lineage.versions == [base_ref(1), base_ref(2), base_ref(5)]
    assert is_anchor(learner, 5), "two versions after the given model, again"
    learner.close()


@pytest.mark.parametrize(
    ("live", "anchor", "due"), [(3, None, 3), (2, None, None), (5, 3, 5), (4, 3, None), (9, 3, None)]
)
def test_when_it_is_due(live: int, anchor: int | None, due: int | None) -> None:
    lineage = Lineage([base_ref(number) for number in range(1, 7)], base_ref(live))
    lineage.anchor = None if anchor is None else base_ref(anchor)
    assert lineage.due_anchor(2) == (None if due is None else base_ref(due))
    assert lineage.due_anchor(None) is None
