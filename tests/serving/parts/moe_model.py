"""A tiny mixture of experts with the shipped model's tokenizer and random weights, which need not make sense."""

import shutil
from pathlib import Path

import torch
from engine_world import MODEL
from transformers import AutoConfig, Qwen3MoeConfig, Qwen3MoeForCausalLM


def make_moe(directory: Path, dtype: torch.dtype = torch.float32) -> Path:
    vocabulary = AutoConfig.from_pretrained(MODEL).vocab_size
    config = Qwen3MoeConfig(
        vocab_size=vocabulary,
        hidden_size=64,
        head_dim=16,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        moe_intermediate_size=64,
        intermediate_size=128,
        num_experts=8,
        num_experts_per_tok=2,
        norm_topk_prob=True,
        max_position_embeddings=1024,
        tie_word_embeddings=False,
        eos_token_id=2,  # without one, the library of grammars does not start
    )
    torch.manual_seed(0)
    Qwen3MoeForCausalLM(config).to(dtype).save_pretrained(directory)
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        if (MODEL / name).exists():
            shutil.copy(MODEL / name, directory / name)
    return directory
