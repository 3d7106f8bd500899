"""Going back to a version: its weights are made again, or where that cannot be, its published ones are gone on from."""

import json
import shutil
from collections.abc import Callable
from io import BytesIO
from itertools import pairwise
from typing import Any

import msgspec
import pytest
import torch
from logged_world import World, lineage_of_newest, logged_past, make_reward, manifests, settle
from sqlalchemy import delete
from stepping import step

from core.ids import base_ref
from core.model.beside import memory_path, paths_beside
from core.operations.servable import NOW
from core.ports import WeightsRef
from core.settings import CheckpointSettings, LearnerSettings
from core.store.database.tables import turns
from learner import past
from learner.updates.state import LearnerState
from learner.versions.checkpoint import Checkpoints
from learner.versions.journal import Entry, Journal
from learner.versions.manifest import decode, encode, path_of, prove_exactly_once

MakeWorld = Callable[[str], World]


def digest(world: World, version: int) -> str:
    with world.store.look() as view:
        policy = view.policies.get(base_ref(version))
    assert policy is not None
    return policy.digest


def test_a_rollback_deeper_than_the_checkpoints_comes_to_the_same_bits(make_world: MakeWorld) -> None:
    """Version 2 is made again from the given model, and goes on as if nothing had come after it."""
    world, straight = make_world("a"), make_world("b")
    learner = world.learner(settings={"checkpoints.keep": 1, "checkpoints.every_s": 0.0, "checkpoints.past_gb": 0.0})
    for seed in range(4):
        world.tell(*logged_past(8, seed=seed))
        settle(learner)
    for version in (5, 4, 3):
        world.release(version, "rolled_back")
    world.release(2)
    other = straight.learner()
    for each, one in ((world, learner), (straight, other)):
        if each is straight:
            each.tell(*logged_past(8))
            settle(one)
        each.tell(*logged_past(8, seed=7))
        settle(one)
        one.close()
    newest = manifests(world)[-1]
    assert (newest.version, newest.parent, newest.afresh) == (base_ref(6), base_ref(2), False)
    assert digest(world, 6) == digest(straight, 3)


def test_what_an_order_waits_for_is_made_again_and_gone_on_from(make_world: MakeWorld) -> None:
    """What lies beside them is as it was. If the order comes to nothing, the learner goes back to what serves."""
    world = make_world("a")
    learner = world.learner(settings={"checkpoints.every_s": 0.0})
    for seed in range(4):
        world.tell(*logged_past(8, seed=seed))
        settle(learner)
    world.release(5)
    for each in (2, 3):
        before = {path: world.blobs.get(path) for path in paths_beside(base_ref(each))}
        world.weights.discard(base_ref(each))
        with world.store.work() as work:
            work.files.drop(base_ref(each))
            work.files.want(base_ref(each))
        settle(learner)
        assert learner.newest == base_ref(each)
        assert {path: world.blobs.get(path) for path in before} == before
        with world.store.look() as view:
            assert view.files.servable([base_ref(each)]) == {base_ref(each): NOW}
            policy = view.policies.get(base_ref(each))
        assert policy is not None
        ref = WeightsRef(version=policy.version, digest=policy.digest, path=policy.weights)
        assert world.weights.open(ref).digest == policy.digest
        world.tell(*logged_past(8, seed=7 + each))
        settle(learner)
        assert learner.newest == base_ref(each), "it waits for the engines"
        if each == 2:
            world.clock.advance(61)
            settle(learner)
            assert manifests(world)[-1].parent == base_ref(5), "it went back to what serves"
    for version in (6, 5, 4):
        world.release(version, "rolled_back")
    world.release(3)
    settle(learner)
    newest = manifests(world)[-1]
    assert (newest.version, newest.parent, newest.afresh) == (base_ref(7), base_ref(3), False)
    learner.close()


def test_what_cannot_be_made_again_is_said_and_the_learner_goes_on(make_world: MakeWorld) -> None:
    """Another learner tries again, which may know how."""
    world = make_world("a")
    learner = world.learner()
    for seed in range(2):
        world.tell(*logged_past(8, seed=seed))
        settle(learner)
    said = spoil(world, "turns")
    with world.store.work() as work:
        work.files.drop(base_ref(2))
        work.files.want(base_ref(2))
    settle(learner)
    with world.store.look() as view:
        assert view.files.servable([base_ref(2)])[base_ref(2)].lost == said
    assert learner.newest == base_ref(3)
    learner.close()
    settle(world.learner())
    with world.store.look() as view:
        assert view.files.servable([base_ref(2)])[base_ref(2)].servable == "rebuild"


def test_checkpoints_of_the_past_grow_sparser_and_say_what_going_back_costs(make_world: MakeWorld) -> None:
    world = make_world("a")
    learner = world.learner(settings={"checkpoints.every_s": 0.0, "checkpoints.keep": 1})
    for seed in range(3):
        world.tell(*logged_past(8, seed=seed))
        settle(learner)
        learner._checkpointing.wait()
    assert learner._checkpointing.versions == [base_ref(2), base_ref(3), base_ref(4)]
    size = Checkpoints(world.directory / "learner").size(base_ref(2))
    learner._checkpointing._settings = CheckpointSettings(every_s=0.0, keep=1, past_gb=3.5 * size / 1e9)
    for seed in range(3, 9):
        world.tell(*logged_past(8, seed=seed))
        settle(learner)
        learner._checkpointing.wait()
    step(learner)
    there = learner._checkpointing.versions
    assert (len(there), there[0], there[-1]) == (4, base_ref(2), base_ref(10))
    gaps = [after.version - before.version for before, after in pairwise(there)]
    assert gaps == sorted(gaps, reverse=True)
    versions = [base_ref(number) for number in range(1, 11)]
    with world.store.work() as work:
        for version in versions:
            work.files.drop(version)
        found = work.files.servable(versions)
        took = [policy.metrics["seconds_updating"] for policy, _ in reversed(work.policies.newest(9))]
    assert found[base_ref(2)].about_s == found[base_ref(1)].about_s == 1.0
    upon = max(version for version in there if version < base_ref(10))
    assert found[base_ref(9)].about_s == pytest.approx(1 + sum(took[upon.version - 1 : 8]), abs=0.06)
    learner.close()


def test_what_was_made_with_settings_that_are_none_today_is_gone_on_from_by_its_weights(
    make_world: MakeWorld, caplog: pytest.LogCaptureFixture
) -> None:
    world = make_world("a")
    learner = world.learner()
    for seed in range(2):
        world.tell(*logged_past(8, seed=seed))
        settle(learner)
    learner.close()
    for checkpoint in (world.directory / "learner").glob("checkpoint-*"):
        shutil.rmtree(checkpoint)
    path = path_of(base_ref(2))
    made = decode(world.blobs.get(path))
    other = json.dumps({**json.loads(made.settings), "momentum_of_1999": 0.5})
    world.blobs.put(path, encode(msgspec.structs.replace(made, settings=other)))
    again = world.learner()
    assert (again.newest, again._afresh) == (base_ref(3), True)
    assert "version 2 was made with settings that this build no longer accepts" in caplog.text
    again.close()


def test_what_is_learned_beside_the_weights_goes_back_with_them(
    make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Baseline, trust and influence become those of the version, even where it cannot be made again.

    What only later versions had learned from is new to it."""
    world, pasts = make_world("a"), [logged_past(8, seed=seed) for seed in range(4)]
    learner = world.learner(settings={"users.max_share": 0.5, "users.distrust": True})
    for past_of_one in pasts:
        world.tell(*past_of_one)
        settle(learner)
    monkeypatch.setattr(past, "MOST_REMADE_S", -1.0)
    for version in (2, 5, 4, 3):
        world.release(version, "live" if version == 2 else "rolled_back")
    world.release(2)
    settle(learner)
    at_two = load_memory(world, 2)
    assert not same(at_two, load_memory(world, 5))
    assert same(learner._rank_group.do(LearnerState.memory), at_two)
    world.tell(*[(turn, make_reward(turn, n / 10, revision=1, after_s=30)) for n, (turn, _) in enumerate(pasts[1])])
    settle(learner)
    newest = manifests(world)[-1]
    assert (newest.version, newest.parent, newest.afresh) == (base_ref(6), base_ref(2), True)
    assert [record.applied_revision for record in newest.turns] == [None] * 8
    assert prove_exactly_once(lineage_of_newest(world)) == 16
    learner.close()


def load_memory(world: World, version: int) -> dict[str, Any]:
    content = world.blobs.get(memory_path(base_ref(version)))
    return dict(torch.load(BytesIO(content), weights_only=True))


def same(first: Any, second: Any) -> bool:
    if isinstance(first, dict):
        return first.keys() == second.keys() and all(same(first[name], second[name]) for name in first)
    return torch.equal(first, second) if isinstance(first, torch.Tensor) else bool(first == second)


@pytest.mark.parametrize("cannot", ["bits", "records", "turns"])
def test_what_cannot_be_made_again_costs_the_optimizer_alone(
    make_world: MakeWorld, caplog: pytest.LogCaptureFixture, cannot: str
) -> None:
    """The published weights serve on and are gone on from, and nothing is learned twice or lost."""
    world = make_world("a")
    learner = world.learner()
    for seed in range(2):
        world.tell(*logged_past(8, seed=seed))
        settle(learner)
    learner._held.close()  # as if it were killed, without a last checkpoint
    before = digest(world, 3)
    said = spoil(world, cannot)
    learner = world.learner()
    assert said in caplog.text
    assert "going on from the published weights of 3, with a fresh optimizer" in caplog.text
    world.tell(*logged_past(8, seed=4))
    settle(learner)
    learner.close()
    newest = manifests(world)[-1]
    assert (newest.version, newest.parent, newest.afresh) == (base_ref(4), base_ref(3), True)
    assert digest(world, 3) == before
    assert prove_exactly_once(manifests(world)) == 24


def spoil(world: World, cannot: str) -> str:
    """Make a version come out otherwise, or not at all; return what is said of it."""
    path = path_of(base_ref(2))
    made = decode(world.blobs.get(path))
    if cannot == "turns":
        with world.store.begin() as connection:
            connection.execute(delete(turns).where(turns.c.inference_id == made.rewards[0].inference_id))
        return "1 of its 8 turns are no longer in the store"
    if cannot == "records":
        first = msgspec.structs.replace(made.turns[0], baseline=7.0)
        world.blobs.put(path, encode(msgspec.structs.replace(made, turns=(first, *made.turns[1:]))))
        return "version 2 came out otherwise: the records of its turns differ"
    journal = Journal(world.directory / "learner")
    newest = next(journal.newest_first())
    assert isinstance(newest, Entry)
    changed = LearnerSettings.model_validate({**json.loads(made.settings), "optimizer": {"learning_rate": 1e-9}})
    other = msgspec.structs.replace(newest.manifest, settings=changed.model_dump_json())
    journal.write(msgspec.structs.replace(newest, manifest=other))
    return "version 3 came out with digest"
