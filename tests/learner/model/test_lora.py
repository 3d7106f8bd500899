"""LoRA: the learner trains adapters alone, and serving gets whole weights as always."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from changed_settings import changed
from logged_world import MODEL, World, logged_past, manifests, settle
from past_batches import some_batch
from safetensors.torch import save_file
from torch import Tensor

from core.errors import ConfigError, WeightsError
from core.model.weights_digest import digest_of_shards
from core.settings import (
    AdmissionSettings,
    KlSettings,
    LearnerSettings,
    LoraSettings,
    ObjectiveSettings,
    OptimizerSettings,
)
from learner.model.policy_model import PolicyModel
from learner.model.sharded_files import stored_tensors
from learner.sequences.joining import merge
from learner.sequences.tensors import micro_batches
from learner.updates.kept import begin_saving, finish_saving, load, small_part
from learner.updates.state import LearnerState, make_state
from learner.updates.update import update
from learner.versions.checkpoint import Checkpoints

MakeWorld = Callable[[str], World]
LORA = LearnerSettings(
    lora=LoraSettings(rank=4),
    optimizer=OptimizerSettings(learning_rate=4e-3),
    objective=ObjectiveSettings(kl=KlSettings(coefficient=0.0)),
    admission=AdmissionSettings(max_divergence=1e9, min_ess=0.0),
)


def logprobs(policy: PolicyModel) -> Tensor:
    batch = some_batch(0)
    with torch.no_grad():
        parts = micro_batches(merge(batch), batch, 1024, "cpu")
        return torch.cat([policy.evaluate(part)[1] for part in parts])


def trained(updates: int = 3) -> LearnerState:
    state = make_state(MODEL, LORA)
    for seed in range(updates):
        update(state, some_batch(seed), LORA)
    return state


def test_it_begins_as_the_model_it_was_given() -> None:
    assert torch.equal(logprobs(make_state(MODEL, LORA).policy), logprobs(make_state(MODEL, LearnerSettings()).policy))


def test_what_is_published_computes_what_adapters_do_and_nothing_else_moved(tmp_path: Path) -> None:
    state = trained()
    published, given = state.policy.tensors(), PolicyModel(MODEL, "cpu").tensors()
    assert published.keys() == given.keys()
    moved = {name for name in given if not torch.equal(published[name], given[name])}
    linear = {f"{name}.weight" for name, module in PolicyModel(MODEL, "cpu").model.named_modules() if "_proj" in name}
    assert moved == linear
    save_file(published, tmp_path / "model.safetensors")
    whole = PolicyModel(MODEL, "cpu")
    whole.load([tmp_path / "model.safetensors"])
    torch.testing.assert_close(logprobs(whole), logprobs(state.policy), rtol=0, atol=2e-5)
    assert not torch.allclose(logprobs(whole), logprobs(PolicyModel(MODEL, "cpu")), atol=1e-3)


def test_only_adapters_have_moments_and_a_bit_of_them_is_a_rank(tmp_path: Path) -> None:
    state = trained(1)
    sizes = sorted({min(parameter.shape) for parameter in state.policy.parameters()})
    assert sizes == [LORA.lora.rank]
    assert len(state.optimizer.state) == len(state.policy.parameters())
    assert all(parameter.grad is None for parameter in state.policy.model.parameters())


def test_targets_are_chosen_by_name() -> None:
    chosen = changed(LORA, {"lora.targets": ("q_proj", "v_proj")})
    names = {name for name, each in make_state(MODEL, chosen).policy.model.named_parameters() if each.requires_grad}
    assert {name.split(".")[-3] for name in names} == {"q_proj", "v_proj"}
    with pytest.raises(ConfigError, match=r"learner\.lora\.targets.*nothing_like_it"):
        make_state(MODEL, changed(LORA, {"lora.targets": ("nothing_like_it",)}))


def weights(world: World) -> dict[str, Tensor]:
    newest, _ = Checkpoints(world.directory / "learner").newest()
    assert newest is not None
    return world.weights_of(newest.version)


def learn(world: World, seed: int) -> None:
    """Make one update with a new learner, and close it."""
    world.tell(*logged_past(8, seed))
    learner = world.learner(settings={"lora.rank": 4, "optimizer.learning_rate": 4e-3, "batch.min_turns": 8})
    settle(learner)
    learner.close()


def test_a_learner_that_begins_again_goes_on_bit_for_bit(make_world: MakeWorld) -> None:
    one, many = make_world("one"), make_world("many")
    learner = one.learner(settings={"lora.rank": 4, "optimizer.learning_rate": 4e-3, "batch.min_turns": 8})
    for seed in range(3):
        one.tell(*logged_past(8, seed))
        settle(learner)
    learner.close()
    for seed in range(3):
        learn(many, seed)
    assert len(manifests(one)) == len(manifests(many)) == 3
    assert weights(one).keys() == weights(many).keys()
    assert all(torch.equal(tensor, weights(many)[name]) for name, tensor in weights(one).items())


def test_adapters_beside_adopted_weights_go_on_bit_for_bit(tmp_path: Path) -> None:
    save_file(trained(1).policy.tensors(), tmp_path / "model.safetensors")
    state = make_state(MODEL, LORA)
    state.policy.load([tmp_path / "model.safetensors"])
    update(state, some_batch(5), LORA)
    begin_saving(state, tmp_path / "checkpoint")
    finish_saving(state)
    published = state.policy.tensors()
    assert stored_tensors(tmp_path / "checkpoint").keys() == names_kept(state), "adapters and moments alone"
    again = make_state(MODEL, LORA)
    load(again, small_part(state), tmp_path / "checkpoint", [tmp_path / "model.safetensors"])
    assert all(torch.equal(tensor, published[name]) for name, tensor in again.policy.tensors().items())
    for each in (state, again):
        update(each, some_batch(6), LORA)
    assert all(torch.equal(t, again.policy.tensors()[name]) for name, t in state.policy.tensors().items())


def names_kept(state: LearnerState) -> set[str]:
    trained = [name for name, parameter in state.policy.model.named_parameters() if ".lora_" in name]
    moments = ("step", "exp_avg", "exp_avg_sq")
    return {f"weights.{name}" for name in trained} | {f"optimizer.{name}.{key}" for name in trained for key in moments}


def test_an_adapter_is_published_and_loaded_bit_for_bit() -> None:
    state, again = trained(2), make_state(MODEL, LORA)
    adapter = state.policy.adapter_tensors()
    modules = {name for name, module in PolicyModel(MODEL, "cpu").model.named_modules() if "_proj" in name}
    assert set(adapter) == {f"{module}.lora_{side}.weight" for module in modules for side in "AB"}
    assert {tensor.dtype for tensor in adapter.values()} == {torch.float32}
    again.policy.load_adapter(adapter)
    assert torch.equal(logprobs(again.policy), logprobs(state.policy))
    assert not torch.equal(logprobs(again.policy), logprobs(make_state(MODEL, LORA).policy))


def test_an_adapter_is_loaded_upon_the_given_model_whatever_was_there(tmp_path: Path) -> None:
    state, again = trained(2), make_state(MODEL, LORA)
    save_file(trained(1).policy.tensors(), tmp_path / "model.safetensors")
    again.policy.load([tmp_path / "model.safetensors"])
    again.policy.load_adapter(state.policy.adapter_tensors())
    assert again.policy.is_given
    assert torch.equal(logprobs(again.policy), logprobs(state.policy))
    assert again.policy.base_digest == digest_of_shards([MODEL / "model.safetensors"])


def test_an_adapter_that_does_not_fit_is_refused_by_name_and_changes_nothing() -> None:
    state = trained(1)
    before = logprobs(state.policy)
    adapter = make_state(MODEL, LORA).policy.adapter_tensors()
    name = sorted(adapter)[-1]
    with pytest.raises(WeightsError, match=rf"{name} is \[1, 1\]"):
        state.policy.load_adapter(adapter | {name: torch.zeros(1, 1)})
    with pytest.raises(WeightsError, match="nothing_like_it"):
        state.policy.load_adapter(adapter | {"nothing_like_it": torch.zeros(1)})
    assert torch.equal(logprobs(state.policy), before)


@pytest.mark.parametrize(
    ("setting", "now", "then"),
    [
        ("rank", 0, "4"),
        ("rank", 8, "4"),
        ("alpha", 16.0, "32.0"),
        ("targets", ("v_proj", "q_proj"), "()"),
    ],
)
def test_other_adapters_than_the_checkpoints_are_refused_by_the_setting(
    make_world: MakeWorld, setting: str, now: object, then: str
) -> None:
    """By another alpha the very same A and B would be another policy."""
    world = make_world("world")
    learn(world, 0)
    with pytest.raises(ConfigError, match=rf"learner\.lora\.{setting} is .*, and was {re.escape(then)} when"):
        world.learner(settings={"lora.rank": 4, f"lora.{setting}": now})


def test_what_is_said_of_adapters_is_nothing_where_all_weights_train(make_world: MakeWorld) -> None:
    world = make_world("world")
    world.tell(*logged_past(8, 0))
    learner = world.learner()
    settle(learner)
    learner.close()
    learner = world.learner(settings={"lora.alpha": 16.0, "lora.targets": ("q_proj",)})
    assert learner.newest == manifests(world)[-1].version
    learner.close()
