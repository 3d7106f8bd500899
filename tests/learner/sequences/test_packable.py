"""Dropout and packing on tiny models of many families: what would distort ratios is off, or refused by name."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import (
    AutoModelForCausalLM,
    BloomConfig,
    GemmaConfig,
    GPT2Config,
    LlamaConfig,
    MambaConfig,
    MistralConfig,
    PreTrainedConfig,
    Qwen2Config,
    Qwen3Config,
    Qwen3NextConfig,
)

from core.errors import ConfigError
from core.settings import ComputeSettings, LearnerSettings
from learner.model import policy_model
from learner.model.loading import load_whole
from learner.model.policy_model import PolicyModel
from learner.sequences.packable import require_packable, require_rows
from learner.updates.state import make_state

SMALL: dict[str, Any] = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "intermediate_size": 48,
    "vocab_size": 64,
    "max_position_embeddings": 64,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 2,
}
SPECIAL = {name: SMALL[name] for name in ("vocab_size", "bos_token_id", "eos_token_id", "pad_token_id")}
APART = [
    LlamaConfig(**SMALL),
    Qwen2Config(**SMALL),
    Qwen3Config(**SMALL),
    GemmaConfig(**SMALL),
    MistralConfig(**SMALL, sliding_window=8),
    GPT2Config(n_embd=32, n_layer=2, n_head=4, n_positions=64, **SPECIAL),
]
LEAKS = [
    (MambaConfig(hidden_size=32, num_hidden_layers=2, state_size=4, **SPECIAL), "carry a state"),
    (
        Qwen3NextConfig(
            **SMALL,
            linear_num_value_heads=2,
            linear_num_key_heads=2,
            linear_key_head_dim=8,
            linear_value_head_dim=8,
            num_experts=0,
            layer_types=["linear_attention", "full_attention"],
        ),
        "carry a state",
    ),
    (BloomConfig(hidden_size=32, n_layer=2, n_head=4, **SPECIAL), "ALiBi"),
]


def made(config: PreTrainedConfig) -> Any:
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)  # biases and norms start trivial
    return model


@pytest.mark.parametrize("config", APART, ids=lambda config: config.model_type)
def test_attention_keeps_sequences_of_a_row_apart(config: PreTrainedConfig) -> None:
    model = made(config)
    require_packable(model)
    require_rows(model)


@pytest.mark.parametrize(("config", "why"), LEAKS, ids=lambda value: getattr(value, "model_type", None))
def test_what_leaks_is_refused_by_its_reason(config: PreTrainedConfig, why: str) -> None:
    with pytest.raises(ConfigError, match=f"learner.compute.packed: .*{why}"):
        require_packable(made(config))
    with pytest.raises(ConfigError, match=f"cannot be midtrained: .*{why}"):
        require_rows(made(config))


def test_dropout_is_no_leak() -> None:
    """The check turns dropout off for itself, and changes no later random numbers."""
    model = made(GPT2Config(n_embd=32, n_layer=2, n_head=4, n_positions=64, **SPECIAL)).train()
    state = torch.get_rng_state()
    require_rows(model)
    assert model.training
    assert torch.equal(torch.get_rng_state(), state)


def test_a_learner_that_packs_asks_it(tmp_path: Path) -> None:
    made(LEAKS[-1][0]).save_pretrained(tmp_path)
    make_state(tmp_path, LearnerSettings())
    with pytest.raises(ConfigError, match="ALiBi"):
        make_state(tmp_path, LearnerSettings(compute=ComputeSettings(packed=True)))


@pytest.mark.parametrize(
    "config",
    [
        LlamaConfig(**SMALL, attention_dropout=0.5),
        GPT2Config(n_embd=32, n_layer=2, n_head=4, n_positions=64, **SPECIAL, resid_pdrop=0.5, embd_pdrop=0.5),
    ],
    ids=["in attention", "modules"],
)
def test_a_policy_that_trains_leaves_nothing_out_by_chance(tmp_path: Path, config: PreTrainedConfig) -> None:
    """Ratios compare it with the policy that the engine serves, which has no dropout."""
    model = made(config)
    model.save_pretrained(tmp_path)
    policy = PolicyModel(tmp_path, "cpu")
    assert policy.model.training
    ids_BT = torch.arange(16)[None]
    with torch.no_grad():
        served = model(input_ids=ids_BT).logits
        for _ in range(3):
            assert torch.allclose(policy.model(input_ids=ids_BT).logits, served, atol=1e-5)


class Noise(nn.Module):
    def forward(self, hidden_BTD: Tensor) -> Tensor:
        return hidden_BTD + torch.randn_like(hidden_BTD)


@pytest.mark.parametrize("part", [nn.Dropout(0.5), Noise()], ids=["dropout", "unknown"])
def test_chance_that_no_config_names_is_switched_off_or_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: nn.Module
) -> None:
    def load(*given: Any) -> Any:
        model = load_whole(*given)
        model.model.layers[0].mlp = nn.Sequential(model.model.layers[0].mlp, part)
        return model

    monkeypatch.setattr(policy_model, "load_whole", load)
    made(LlamaConfig(**SMALL)).save_pretrained(tmp_path)
    if isinstance(part, Noise):
        with pytest.raises(ConfigError, match="computes something else at each training step"):
            PolicyModel(tmp_path, "cpu")
    else:
        assert PolicyModel(tmp_path, "cpu").model.training
