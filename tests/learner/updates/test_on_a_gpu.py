"""An update on a GPU is the update on a processor. Without a GPU here, these tests are skipped."""

from pathlib import Path
from typing import Any

import pytest
import torch
from changed_settings import changed
from drifted_world import CASES, updated
from logged_world import MODEL
from past_batches import DEFAULT, some_batch
from safetensors.torch import load_file, save_file

from core.settings import LearnerSettings
from learner.updates.kept import begin_saving, finish_saving, load, small_part
from learner.updates.state import LearnerState, make_state
from learner.updates.update import update
from learner.versions.probe import probe_of_model

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")

ON_GPU: dict[str, Any] = {"device": "cuda"}
WAYS: dict[str, dict[str, Any]] = {
    "all weights": {},
    "adapters": {"lora.rank": 4, "objective.kl.coefficient": 0.05},
    "packed": {"compute.packed": True},
    "shared prompts": {"compute.shared_prompts": True},
    "checkpointed": {"compute.gradient_checkpointing": True},
    "entropy": {"objective.entropy_coefficient": 0.1},
}


def learned(settings: LearnerSettings, updates: int = 2) -> tuple[LearnerState, list[dict[str, float]]]:
    state = make_state(MODEL, settings)
    return state, [update(state, some_batch(seed), settings).metrics for seed in range(updates)]


def weights(state: LearnerState) -> list[torch.Tensor]:
    return [parameter.detach().cpu() for parameter in state.policy.parameters()]


@pytest.mark.parametrize("case", CASES)
def test_every_kind_of_batch_has_the_same_gradients(case: str) -> None:
    expected, found = updated(case, settings={"device": "cpu"}), updated(case, settings=ON_GPU)
    for mine, other in zip(found.gradients, expected.gradients, strict=True):
        assert mine.is_cuda
        torch.testing.assert_close(mine.cpu(), other, rtol=1e-3, atol=1e-5)
    one, other_result = found.result, expected.result
    assert [(r.dropped, r.late) for r in one.records] == [(r.dropped, r.late) for r in other_result.records]
    assert one.metrics == pytest.approx(other_result.metrics, rel=1e-3, abs=1e-4)


@pytest.mark.parametrize("way", WAYS)
def test_every_way_to_compute_learns_the_same(way: str) -> None:
    _, expected = learned(changed(DEFAULT, WAYS[way] | {"device": "cpu"}))
    _, found = learned(changed(DEFAULT, WAYS[way] | ON_GPU))
    for mine, other in zip(found, expected, strict=True):
        assert mine == pytest.approx(other, rel=1e-2, abs=1e-3)


@pytest.mark.parametrize("way", ["all weights", "adapters", "packed"])
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_the_same_state_and_batches_give_the_same_bits(way: str, precision: str) -> None:
    settings = changed(DEFAULT, WAYS[way] | ON_GPU | {"compute.precision": precision})
    (one, _), (other, _) = learned(settings), learned(settings)
    assert all(map(torch.equal, weights(one), weights(other)))


@pytest.mark.parametrize(("wrote", "reads"), [("cuda", "cpu"), ("cpu", "cuda"), ("cuda", "cuda")])
def test_a_checkpoint_is_read_wherever_the_learner_computes(wrote: str, reads: str, tmp_path: Path) -> None:
    state, _ = learned(changed(DEFAULT, {"device": wrote}))
    begin_saving(state, tmp_path)
    finish_saving(state)
    settings = changed(DEFAULT, {"device": reads})
    again = make_state(MODEL, settings)
    load(again, small_part(state), tmp_path, [])
    assert all(map(torch.equal, weights(again), weights(state)))
    assert update(again, some_batch(2), settings).metrics["tokens"] > 0


@pytest.mark.parametrize("way", ["all weights", "adapters"])
def test_what_is_published_is_what_was_learned(way: str, tmp_path: Path) -> None:
    state, _ = learned(changed(DEFAULT, WAYS[way] | ON_GPU))
    shard = tmp_path / "model.safetensors"
    save_file(state.policy.tensors(), shard)
    again = make_state(MODEL, changed(DEFAULT, {"device": "cpu"}))
    again.policy.load([shard])
    expected = state.policy.tensors()
    assert all(torch.equal(tensor, expected[name].cpu()) for name, tensor in load_file(shard).items())


def test_the_probe_of_a_model_is_that_of_a_processor() -> None:
    """A GPU's probe has more texts; each answers as on a processor."""
    found = probe_of_model(MODEL, "cuda")
    assert found.finite
    assert probe_of_model(MODEL, "cuda") == found
