"""Small random models of families that score their tokens in different ways."""

from pathlib import Path
from typing import Any

import torch
import transformers

SMALL = {"vocab_size": 61, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
GPT = {"vocab_size": 61, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64}
TOKENS = {"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2}
FAMILIES: dict[str, dict[str, Any]] = {
    "Llama": SMALL,
    "Qwen3": {**SMALL, "head_dim": 8, "num_key_value_heads": 2},
    "GPT2": GPT,
    "GPTJ": {**GPT, "rotary_dim": 4},
    "Phi": SMALL,
    "Cohere": {**SMALL, "logit_scale": 0.25},
    "Granite": {**SMALL, "logits_scaling": 8.0},
    "Gemma2": {**SMALL, "head_dim": 8, "num_key_value_heads": 2, "final_logit_softcapping": 2.0},
}


def make_model(family: str, folder: Path, **changes: Any) -> Any:
    """Return a random model with large logits and, if it has one, a bias that is not zero."""
    torch.manual_seed(0)
    config = getattr(transformers, f"{family}Config")(**TOKENS, **{**FAMILIES[family], **changes})
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        head = model.get_output_embeddings()
        head.weight.normal_(0, 0.7)
        if getattr(head, "bias", None) is not None:
            head.bias.normal_(0, 1.0)
    model.save_pretrained(folder)
    return model
