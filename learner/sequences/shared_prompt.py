"""A prompt that several sequences continue, computed once (`learner.compute.shared_prompts`).

Keys and values of the prompt's layers are what each sequence attends to, and through them gradients pass to the prompt.
What models with another state than keys and values would do is tried, as for packed rows."""

from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache

from core.errors import ConfigError

_TRIED = 12  # tokens of the prompt, and of each sequence
_AGREEMENT = 1e-4


def continuing(model: Any, prompt_P: Tensor, sequences: int) -> dict[str, Any]:
    """Compute a prompt, and return the arguments with which the model computes so many continuations of it."""
    cache = DynamicCache(config=model.config)
    model.base_model(input_ids=prompt_P[None], past_key_values=cache, use_cache=True)
    cache.batch_repeat_interleave(sequences)
    return {"past_key_values": cache, "use_cache": True}


@torch.no_grad()
def require_shareable(model: Any) -> None:
    """Raise ConfigError, naming the setting, unless sequences that continue a prompt come out as they do alone."""
    vocabulary = model.config.get_text_config().vocab_size
    ids_BT = torch.arange(3 * _TRIED, device=model.device).view(3, _TRIED) % vocabulary
    prompt_P, ids_BT = ids_BT[0], ids_BT[1:]
    whole_BT = torch.cat([prompt_P.expand(len(ids_BT), -1), ids_BT], 1)
    alone_BTD = model.base_model(input_ids=whole_BT, use_cache=False).last_hidden_state[:, _TRIED:]
    try:
        found_BTD = model.base_model(input_ids=ids_BT, **continuing(model, prompt_P, len(ids_BT))).last_hidden_state
        is_same = float((found_BTD - alone_BTD).abs().max()) <= _AGREEMENT * float(alone_BTD.abs().max())
    except (TypeError, ValueError, AttributeError, RuntimeError):  # its state cannot be handed on so
        is_same = False
    if not is_same:
        kind = type(model).__name__
        raise ConfigError(
            f"learner.compute.shared_prompts: {kind} carries another state along a sequence: leave it false"
        )
