"""Architectures other than the shipped one.

Llama-shaped ones take the lean path, others use transformers' modules, and those that would be computed wrongly are
refused."""

from pathlib import Path

import pytest
import torch
from small_models import SMALL, saved
from transformers import (
    Gemma2Config,
    GPT2Config,
    GraniteConfig,
    LlamaConfig,
    MistralConfig,
    PreTrainedConfig,
    Qwen2Config,
)

from core.errors import ConfigError
from core.settings import LocalEngineSettings, ServingSettings
from serving.engines.local.attention import Row
from serving.engines.local.model import load_decoder, slot_cache

GPT2 = GPT2Config(n_embd=64, n_layer=2, n_head=4, vocab_size=128, n_positions=64)
LEAN = [LlamaConfig(**SMALL), LlamaConfig(**SMALL, attention_bias=True, mlp_bias=True), Qwen2Config(**SMALL)]
BY_MODULES = [GraniteConfig(**SMALL, residual_multiplier=0.3, embedding_multiplier=2.0), GPT2]


@pytest.mark.parametrize(("config", "lean"), [(c, True) for c in LEAN] + [(c, False) for c in BY_MODULES])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_an_architecture_is_computed_as_transformers_does(
    tmp_path: Path, config: PreTrainedConfig, lean: bool, dtype: str
) -> None:
    stock = saved(config, tmp_path)
    decoder = load_decoder(tmp_path, ServingSettings(local=LocalEngineSettings(dtype=dtype)))
    assert (decoder.rotary is not None) == lean
    cache = slot_cache(decoder.model, 3, 40)
    tokens = torch.randint(128, (30,), generator=torch.Generator().manual_seed(1)).tolist()
    decoder.forward(cache, [Row(2, 0, 20)], tokens[:20])
    for at in range(20, 30):
        logits = decoder.forward(cache, [Row(2, at, at + 1)], tokens[at : at + 1])[0].float()
    with torch.inference_mode():
        expected = stock(torch.tensor([tokens])).logits[0, -1]
    assert torch.allclose(logits, expected, atol=1e-3 if dtype == "float32" else 0.05 * float(expected.abs().max()))


@pytest.mark.parametrize(
    ("config", "why"),
    [
        (Gemma2Config(**SMALL, head_dim=16, query_pre_attn_scalar=16), "soft caps"),
        (MistralConfig(**SMALL, sliding_window=16), "attention window of 16"),
        (LlamaConfig(**SMALL, rope_parameters={"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}), "dynamic"),
    ],
)
def test_what_would_be_computed_wrongly_is_refused(tmp_path: Path, config: PreTrainedConfig, why: str) -> None:
    saved(config, tmp_path)
    with pytest.raises(ConfigError, match=why):
        load_decoder(tmp_path, ServingSettings())


def test_a_directory_without_a_model_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"serving\.model"):
        load_decoder(tmp_path, ServingSettings())
