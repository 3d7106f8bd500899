"""A learner of adapters publishes adapters, and others go on from them: with adapters, or with all weights."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from logged_world import MODEL, World, logged_past, settle
from past_batches import some_batch
from safetensors.torch import load_file, save_file
from torch import Tensor

from core.errors import ConfigError, WeightsError
from core.ids import base_ref
from core.model.weights_digest import digest_of_shards
from core.ports import AdapterConfig, Opened, WeightsRef
from core.settings import LearnerSettings, LoraSettings, OptimizerSettings
from learner.model.policy_model import PolicyModel
from learner.updates.state import make_state
from learner.updates.update import update
from learner.versions.loading import load_version
from learner.versions.version_files import digest_of, write_files

MakeWorld = Callable[[str], World]
RANK = {"lora.rank": 4, "optimizer.learning_rate": 4e-3, "batch.min_turns": 8}
BASE = digest_of_shards([MODEL / "model.safetensors"])
LORA = LearnerSettings(lora=LoraSettings(rank=4, alpha=6.0), optimizer=OptimizerSettings(learning_rate=4e-3))


def opened(world: World, version: int) -> Opened:
    with world.store.look() as view:
        policy = view.policies.get(base_ref(version))
    assert policy is not None
    return world.weights.open(WeightsRef(version=policy.version, digest=policy.digest, path=policy.weights))


def tensors(found: Opened) -> dict[str, Tensor]:
    return {name: tensor for shard in found.shards for name, tensor in load_file(shard).items()}


def learn(world: World, seed: int, **settings: object) -> None:
    """Make one update with a new learner, which is closed again."""
    world.tell(*logged_past(8, seed))
    learner = world.learner(settings=RANK | {name.replace("__", "."): value for name, value in settings.items()})
    settle(learner)
    learner.close()


def forget_the_learner(world: World, live: int) -> None:
    """Leave what is published, and nothing that the learner keeps for itself."""
    world.release(live)
    shutil.rmtree(world.directory / "learner")


def test_what_is_published_is_the_adapter_that_trains(make_world: MakeWorld) -> None:
    world = make_world("world")
    learn(world, 0)
    found = opened(world, 2)
    assert found.adapter == AdapterConfig(base_digest=BASE, rank=4, alpha=32.0)
    size = sum(path.stat().st_size for path in found.shards)
    assert size < (MODEL / "model.safetensors").stat().st_size / 4
    assert {tensor.dtype for tensor in tensors(found).values()} == {torch.float32}
    state = make_state(MODEL, LearnerSettings(lora=LoraSettings(rank=4)))
    load_version(state.policy, found, LoraSettings(rank=4))
    assert all(torch.equal(tensor, tensors(found)[name]) for name, tensor in state.policy.adapter_tensors().items())


def test_a_learner_goes_on_from_a_published_adapter_to_the_bit(make_world: MakeWorld) -> None:
    """Its optimizer is a new one, as with whole weights; where it begins is what was published."""
    worlds = [make_world(name) for name in ("one", "other")]
    for world in worlds:
        learn(world, 0)
        forget_the_learner(world, 2)
        learn(world, 1)
    one, other = (opened(world, 3) for world in worlds)
    assert one.digest == other.digest
    assert one.adapter == opened(worlds[0], 2).adapter
    before, after = tensors(opened(worlds[0], 2)), tensors(one)
    moved = max(float((after[name] - before[name]).abs().max()) for name in before)
    assert 0 < moved < 0.01, "one update away"


def test_all_weights_train_on_from_an_adapter_merged(make_world: MakeWorld) -> None:
    world = make_world("world")
    learn(world, 0)
    adapter = opened(world, 2)
    forget_the_learner(world, 2)
    learn(world, 1, lora__rank=0, optimizer__learning_rate=1e-6)
    whole = opened(world, 3)
    assert whole.adapter is None
    merged = PolicyModel(MODEL, "cpu")
    load_version(merged, adapter)
    given, sums = PolicyModel(MODEL, "cpu").tensors(), merged.tensors()
    assert tensors(whole).keys() == sums.keys()
    gap = max(float((tensor - sums[name]).abs().max()) for name, tensor in tensors(whole).items())
    assert gap < 1e-5
    assert max(float((sums[name] - given[name]).abs().max()) for name in sums) > 1e-4


def test_adapters_upon_whole_weights_are_published_merged_with_them(make_world: MakeWorld) -> None:
    """Hosts have the given model, and no other, to put adapters upon."""
    world = make_world("world")
    learn(world, 0, lora__rank=0)
    forget_the_learner(world, 2)
    learn(world, 1)
    assert opened(world, 3).adapter is None


def test_adapters_upon_the_anchor_are_published_as_such(make_world: MakeWorld) -> None:
    """The anchor's weights are those of the given model, though they were opened as a version's."""
    world = make_world("world")
    learn(world, 0, lora__rank=0)
    forget_the_learner(world, 1)
    world.release(2, "rolled_back")
    learn(world, 1)
    assert opened(world, 3).adapter is not None


def test_another_rank_than_the_versions_is_said(make_world: MakeWorld) -> None:
    world = make_world("world")
    learn(world, 0)
    forget_the_learner(world, 2)
    with pytest.raises(ConfigError, match=r"learner\.lora\.rank and alpha are 8 and 32, and 4 and 32 in the version"):
        learn(world, 1, lora__rank=8)


def test_an_adapter_upon_another_model_is_refused_naming_both(tmp_path: Path) -> None:
    state = make_state(MODEL, LORA)
    files = write_files(state, tmp_path, "bfloat16")
    other = AdapterConfig(base_digest="ab" * 32, rank=4, alpha=6.0)
    for settings in (LORA.lora, LoraSettings()):
        with pytest.raises(WeightsError, match=f"adapter upon weights {other.base_digest}, and the base is {BASE}"):
            load_version(state.policy, Opened("", files.shards, other), settings)


def test_what_was_trained_beside_other_weights_is_whole(tmp_path: Path) -> None:
    state = make_state(MODEL, LORA)
    update(state, some_batch(0), LORA)
    alone = write_files(state, tmp_path, "bfloat16")
    assert alone.adapter == AdapterConfig(base_digest=BASE, rank=4, alpha=6.0)
    assert digest_of(alone) != digest_of_shards(alone.shards)
    save_file(PolicyModel(MODEL, "cpu").tensors(), tmp_path / "whole.safetensors")
    state.policy.load([tmp_path / "whole.safetensors"])
    assert write_files(state, tmp_path, "bfloat16").adapter is None
