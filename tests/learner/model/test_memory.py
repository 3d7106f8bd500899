"""One copy of the weights, in the precision of their files, serves the policy's base and the anchor."""

from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from changed_settings import changed
from held_bytes import Made, held_bytes, kept_for_backward
from logged_world import MODEL
from past_batches import some_batch
from safetensors.torch import save_file
from torch import Tensor

from core.errors import WeightsError
from core.model.memory import LearnerPlan, adapter_parameters, learner_bytes, parameters_of, shapes_in
from core.settings import LearnerSettings
from learner.model import lora
from learner.model.policy_model import PolicyModel
from learner.sequences.joining import merge
from learner.sequences.tensors import MicroBatch, micro_batches
from learner.updates.state import LearnerState, make_state
from learner.updates.update import update

ADAPTERS = changed(
    LearnerSettings(),
    {
        "lora.rank": 4,
        "optimizer.learning_rate": 4e-3,
        "advantage.baseline": "raw",
        "admission.max_divergence": 1e9,
        "admission.min_ess": 0.0,
    },
)
SHAPES = shapes_in([MODEL / "model.safetensors"])
MATRICES = {shape for shape in SHAPES.values() if len(shape) == 2}


def parts() -> list[MicroBatch]:
    batch = some_batch(0)
    return micro_batches(merge(batch), batch, 1024, "cpu")


def logprobs(model: object) -> Tensor:
    with torch.no_grad():
        return torch.cat([model.evaluate(part)[1] for part in parts()])  # type: ignore[attr-defined]


def updated(settings: LearnerSettings, updates: int = 1) -> LearnerState:
    state = make_state(MODEL, settings)
    for seed in range(updates):
        update(state, some_batch(seed), settings)
    return state


@pytest.fixture(scope="module")
def given() -> Tensor:
    """Return what the given model says of the batch."""
    return logprobs(PolicyModel(MODEL, "cpu"))


@pytest.mark.parametrize(
    ("changes", "plan", "a_parameter"),
    [
        ({}, LearnerPlan(rank=4), None),
        ({"lora.rank": 0}, LearnerPlan(), 18.0),
        ({"lora.rank": 0, "compute.precision": "bfloat16"}, LearnerPlan(), 18.0),
        ({"lora.rank": 0, "objective.kl.coefficient": 0.0}, LearnerPlan(is_held=False), 16.0),
    ],
)
def test_what_a_learner_holds_is_what_arithmetic_says(
    changes: Mapping[str, object], plan: LearnerPlan, a_parameter: float | None
) -> None:
    before = held_bytes()
    state = updated(changed(ADAPTERS, changes))
    held, said = held_bytes() - before, learner_bytes(SHAPES, plan)
    assert state.optimizer.state
    assert held == pytest.approx(said.weights + said.moments + said.anchor, rel=0.02)
    if a_parameter is None:
        a_parameter = 2 + 12 * adapter_parameters(SHAPES, 4) / parameters_of(SHAPES)
    assert (held + said.gradients * (plan.rank == 0)) / parameters_of(SHAPES) == pytest.approx(a_parameter, rel=0.02)


def test_the_anchor_is_the_base_without_its_adapters(given: Tensor) -> None:
    state = updated(ADAPTERS, 2)
    assert torch.equal(logprobs(state.anchor), given)
    assert not torch.allclose(logprobs(state.policy), given, atol=1e-3)
    assert state.anchor.is_given


def test_a_later_version_is_an_adapter_in_the_policys_place(given: Tensor) -> None:
    state = updated(ADAPTERS)
    later, then = state.policy.adapter_tensors(), logprobs(state.policy)
    before = held_bytes()
    kept = {name: tensor.clone() for name, tensor in later.items()}
    state.anchor.load_adapter(kept)
    update(state, some_batch(5), ADAPTERS)
    assert torch.equal(logprobs(state.anchor), then)
    assert not torch.equal(logprobs(state.policy), then)
    assert not state.anchor.is_given
    assert held_bytes() - before < 1.1 * sum(tensor.nbytes for tensor in kept.values())
    state.anchor.load_given()
    assert torch.equal(logprobs(state.anchor), given)
    with pytest.raises(WeightsError, match="nothing_like_it"):
        state.anchor.load_adapter(kept | {"nothing_like_it": torch.zeros(1)})
    assert state.anchor.is_given


def test_the_anchor_stays_when_the_policy_gets_another_base(tmp_path: Path, given: Tensor) -> None:
    state = updated(ADAPTERS)
    save_file(state.policy.tensors(), tmp_path / "model.safetensors")
    then, kept = logprobs(state.policy), state.policy.adapter_tensors()
    state.policy.load([tmp_path / "model.safetensors"])
    assert torch.equal(logprobs(state.anchor), given)
    state.anchor.load_adapter(kept)
    assert torch.equal(logprobs(state.anchor), then)
    state.anchor.load([tmp_path / "model.safetensors"])
    assert torch.equal(logprobs(state.anchor), logprobs(state.policy))


def test_what_is_stored_wider_is_taken_over_bit_for_bit_and_given_back(tmp_path: Path) -> None:
    tensors = {name: tensor + 1e-4 for name, tensor in PolicyModel(MODEL, "cpu").tensors().items()}
    save_file(tensors, tmp_path / "model.safetensors")
    policy = PolicyModel(MODEL, "cpu", frozen=True)
    assert {each.dtype for each in policy.model.parameters() if each.ndim == 2} == {torch.bfloat16}
    policy.load([tmp_path / "model.safetensors"])
    assert all(torch.equal(tensor, tensors[name]) for name, tensor in policy.tensors().items())
    policy.load_given()
    assert {each.dtype for each in policy.model.parameters() if each.ndim == 2} == {torch.bfloat16}


@pytest.mark.parametrize("settings", [{}, {"lora.rank": 0, "compute.precision": "bfloat16"}])
def test_no_matrix_in_another_precision_is_kept_for_the_backward_pass(settings: Mapping[str, object]) -> None:
    """The heads of models with a small vocabulary apart, which is widened once for a micro-batch."""
    chosen = changed(ADAPTERS, settings)
    state = make_state(MODEL, chosen)
    own = {each.untyped_storage().data_ptr() for each in state.policy.model.parameters()}
    with kept_for_backward() as kept:
        update(state, some_batch(0), chosen)
    head = SHAPES["model.embed_tokens.weight"]
    matrices = [each for each in kept if tuple(each.shape) in MATRICES - {head}]
    assert matrices
    assert all(each.untyped_storage().data_ptr() in own for each in matrices)


def test_only_sampled_positions_have_logits() -> None:
    """Neither the policy nor the anchor makes those of all positions, forward or backward."""
    state, made = make_state(MODEL, ADAPTERS), Made()
    with made:
        update(state, some_batch(0), ADAPTERS)
    vocabulary, sampled = state.policy.vocabulary, sum(len(part.targets_N) for part in parts())
    positions = sum(part.ids_BT.numel() for part in parts())
    rows = {shape[0] for shape in made.shapes if len(shape) == 2 and shape[1] == vocabulary}
    assert rows
    assert max(rows) <= sampled < positions
    assert not any(len(shape) > 2 and vocabulary in shape for shape in made.shapes)


def test_adapters_stand_aside_for_as_long_as_another_computes() -> None:
    state = updated(ADAPTERS)
    own = logprobs(state.policy)
    with pytest.raises(ZeroDivisionError), lora.instead(state.policy.model, None):
        raise ZeroDivisionError
    assert torch.equal(logprobs(state.policy), own)
