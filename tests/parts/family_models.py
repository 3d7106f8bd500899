"""Small random models of the families' architectures, with the tokenizers and templates of `family_files`."""

from pathlib import Path
from typing import Any

import torch
from family_files import KIN, tokenizer_of, write_files
from transformers import (
    AutoModelForCausalLM,
    DeepseekV3Config,
    Gemma2Config,
    Gemma3TextConfig,
    Gemma4TextConfig,
    Glm4MoeConfig,
    GptOssConfig,
    LlamaConfig,
    MistralConfig,
    PreTrainedConfig,
    Qwen2Config,
    Qwen3_5TextConfig,
    Qwen3Config,
    Qwen3MoeConfig,
)

CONTEXT = 2048
HEAD = 16
SMALL: dict[str, Any] = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": HEAD,
    "intermediate_size": 48,
    "max_position_embeddings": CONTEXT,
    "initializer_range": 0.08,
}
EXPERTS: dict[str, Any] = {"num_experts_per_tok": 2, "moe_intermediate_size": 16}
LATENT: dict[str, Any] = {"q_lora_rank": 16, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8}


def config_of(name: str, window: int, global_head: int, **tokens: Any) -> PreTrainedConfig:
    given = {**SMALL, **tokens}
    match name:
        case "Qwen 2.5":
            return Qwen2Config(**given)
        case "Qwen 3":
            return Qwen3Config(**given)
        case "Qwen3-Coder":
            return Qwen3MoeConfig(**given, **EXPERTS, num_experts=4)
        case "Qwen 3.5":
            return Qwen3_5TextConfig(**given, layer_types=["linear_attention", "full_attention"])
        case "Llama 3.1" | "Llama 3.2" | "SmolLM2":
            return LlamaConfig(**given)
        case "Mistral" | "Mistral of pieces":
            return MistralConfig(**given, sliding_window=None)
        case "DeepSeek V3" | "DeepSeek V3.1":
            experts = {"n_routed_experts": 4, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1}
            return DeepseekV3Config(**{**given, "head_dim": 8}, **EXPERTS, **LATENT, **experts, v_head_dim=16)
        case "gpt-oss":
            return GptOssConfig(**given, num_local_experts=4, num_experts_per_tok=2, sliding_window=window)
        case "GLM 4.5":
            experts = {"n_routed_experts": 4, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1}
            return Glm4MoeConfig(**given, **EXPERTS, **experts)
        case "Gemma 2":
            return Gemma2Config(**given, query_pre_attn_scalar=16)
        case "Gemma 3":
            return Gemma3TextConfig(**given, query_pre_attn_scalar=16, sliding_window=window)
        case "Gemma 4":
            return Gemma4TextConfig(
                **given, global_head_dim=global_head, hidden_size_per_layer_input=0, sliding_window=window
            )
    raise KeyError(name)


def write_model(directory: Path, name: str, window: int = CONTEXT, global_head: int = HEAD) -> Path:
    """Write a whole model directory, its weights drawn by a fixed seed.

    `window` is that of layers that have one, `global_head` the size of heads in Gemma 4's other layers."""
    kin = KIN["Qwen 3.5" if name == "Qwen3-Coder" else name]
    write_files(directory, kin)
    tokenizer = tokenizer_of(kin.kind, kin.special, kin.written)
    stops = [tokenizer.token_to_id(stop) for stop in kin.stops]
    ids = {"vocab_size": tokenizer.get_vocab_size(), "bos_token_id": 0, "eos_token_id": stops[0], "pad_token_id": None}
    generation = (directory / "generation_config.json").read_bytes()
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config_of(name, window, global_head, **ids), dtype=torch.float32)
    model.save_pretrained(directory)
    (directory / "generation_config.json").write_bytes(generation)
    return directory
