"""The first version: made once from the given model, whatever ends in between."""

from collections.abc import Callable

import pytest
from mortal import Crash, Fuse
from release_world import ReleaseWorld

from core.blobs import FsspecBlobs
from core.errors import ConfigError, WeightsError
from core.events import PolicyVersion, Topic
from core.ids import ANCHOR
from core.model.probes import get_probe
from core.model.weights_digest import digest_of_shards

MakeWorld = Callable[..., ReleaseWorld]


def test_the_anchor_is_made_and_released_once(make_world: MakeWorld) -> None:
    world = make_world()
    refs = [world.anchor() for _ in range(3)]
    assert len(set(refs)) == 1
    assert refs[0].version == ANCHOR
    assert refs[0].digest == digest_of_shards([world.model / "model.safetensors"])
    assert [(r.version, r.state, r.by) for r in world.history()] == [(1, "live", "start")]
    assert [(r.version, r.state, r.by) for r in world.said()] == [(1, "live", "start")]
    assert [event.version for event in world.logged(Topic.POLICIES) if isinstance(event, PolicyVersion)] == [1]
    world.start()
    assert world.check_one_lives() == 1


def test_an_anchor_that_was_cut_short_is_completed(make_world: MakeWorld) -> None:
    """Any step may be the first one missing; afterwards the log knows what the store knows."""
    for at in range(20):
        world, fuse = make_world(), Fuse(at)
        try:
            world.anchor(fuse)
        except Crash:
            ref = world.anchor()
        else:
            break
        assert world.states() == {1: "live"}, at
        assert world.steps(1) == ["live"], at
        assert {(r.version, r.state) for r in world.said()} == {(1, "live")}, at
        known = [event for event in world.logged(Topic.POLICIES) if isinstance(event, PolicyVersion)]
        assert {(policy.version, policy.digest) for policy in known} == {(1, ref.digest)}, at
        assert digest_of_shards(world.weights.open(ref).shards) == ref.digest
        assert get_probe(FsspecBlobs(world.directory / "blobs"), ref.version).weights_digest == ref.digest
    assert at == 7, "every write was cut off once"


def test_a_model_without_weights_is_named(make_world: MakeWorld) -> None:
    world = make_world()
    (world.model / "model.safetensors").unlink()
    with pytest.raises(ConfigError, match=str(world.model)):
        world.anchor()


def test_another_model_in_its_place_is_told_before_its_probe_is_made(make_world: MakeWorld) -> None:
    world, fuse = make_world(), Fuse(4)
    with pytest.raises(Crash):
        world.anchor(fuse)
    assert world.states() == {1: "candidate"}
    world.shards_at(world.model / "model.safetensors", 1)
    with pytest.raises(WeightsError, match=str(world.model)):
        world.anchor()
