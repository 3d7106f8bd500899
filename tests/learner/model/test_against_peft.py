"""Adapters compute what peft's do, from the same A and B, with the same gradients."""

from pathlib import Path
from typing import Any

import peft
import pytest
import torch
import transformers
from logged_world import MODEL
from past_batches import some_batch
from torch import Tensor

from core.settings import LoraSettings
from learner.model.policy_model import PolicyModel
from learner.sequences.joining import merge
from learner.sequences.tensors import MicroBatch, micro_batches

SETTINGS = LoraSettings(rank=4, alpha=10.0)
GPT2 = {
    "vocab_size": 512,
    "n_embd": 32,
    "n_layer": 2,
    "n_head": 4,
    "n_positions": 512,
    "bos_token_id": 0,
    "eos_token_id": 1,
}


def part() -> MicroBatch:
    batch = some_batch(0)
    return micro_batches(merge(batch), batch, 100_000, "cpu")[0]


def peft_model(directory: Path, tensors: dict[str, Tensor], targets: Any, *, transposed: bool = False) -> Any:
    given = transformers.AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    config = peft.LoraConfig(
        r=SETTINGS.rank, lora_alpha=SETTINGS.alpha, target_modules=targets, fan_in_fan_out=transposed
    )
    model = peft.get_peft_model(given, config)
    named = {f"base_model.model.{name}": tensor for name, tensor in tensors.items()}
    loaded = peft.set_peft_model_state_dict(model, named)
    assert not loaded.unexpected_keys, "peft reads the names that are published"
    return model


def scored(model: Any, batch: MicroBatch) -> Tensor:
    logits_NV = model(input_ids=batch.ids_BT).logits[batch.rows_N, batch.places_N] / batch.temperature_N[:, None]
    return logits_NV.log_softmax(-1).gather(1, batch.targets_N[:, None])[:, 0]


def moved(directory: Path) -> PolicyModel:
    policy = PolicyModel(directory, "cpu", adapters=(SETTINGS, 0))
    with torch.no_grad():
        for number, parameter in enumerate(policy.parameters()):
            parameter += 0.02 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(number))
    return policy


def test_the_same_log_probabilities_and_gradients() -> None:
    policy, batch = moved(MODEL), part()
    other = peft_model(MODEL, policy.adapter_tensors(), "all-linear")
    logprobs_N, expected_N = policy.evaluate(batch)[1], scored(other, batch)
    torch.testing.assert_close(logprobs_N, expected_N, rtol=0, atol=2e-4)
    logprobs_N.sum().backward()
    expected_N.sum().backward()
    found = {name: each.grad for name, each in policy.model.named_parameters() if each.grad is not None}
    wanted = {
        name.removeprefix("base_model.model.").replace(".default.", "."): each.grad
        for name, each in other.named_parameters()
        if each.requires_grad
    }
    assert found.keys() == wanted.keys()
    for name, gradient in wanted.items():
        torch.testing.assert_close(found[name], gradient, rtol=1e-3, atol=1e-3, msg=name)


def test_a_matrix_that_is_laid_out_the_other_way(tmp_path: Path) -> None:
    torch.manual_seed(0)
    transformers.GPT2LMHeadModel(transformers.GPT2Config(**GPT2)).save_pretrained(tmp_path)
    policy, batch = moved(tmp_path), part()
    policy.model.eval()
    other = peft_model(tmp_path, policy.adapter_tensors(), ["c_attn", "c_proj", "c_fc"], transposed=True).eval()
    torch.testing.assert_close(policy.evaluate(batch)[1], scored(other, batch), rtol=0, atol=2e-4)
    merged = other.merge_and_unload().state_dict()
    for name, tensor in policy.tensors().items():
        torch.testing.assert_close(tensor, merged[name], rtol=0, atol=1e-5, msg=name)


@pytest.mark.parametrize("transposed", [False, True])
def test_what_begins_differs_by_the_seed_alone(transposed: bool, tmp_path: Path) -> None:
    directory = MODEL
    if transposed:
        transformers.GPT2LMHeadModel(transformers.GPT2Config(**GPT2)).save_pretrained(tmp_path)
        directory = tmp_path
    first, same, other = (
        PolicyModel(directory, "cpu", adapters=(SETTINGS, seed)).adapter_tensors() for seed in (0, 0, 1)
    )
    assert all(torch.equal(tensor, same[name]) for name, tensor in first.items())
    assert not any(torch.equal(tensor, other[name]) for name, tensor in first.items() if ".lora_A." in name)
