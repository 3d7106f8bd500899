"""A test of whether a model keeps sequences apart that are packed into one row (`learner.compute.packed`, midtraining).

It tries: a sequence behind another one must come out as it does alone. Models whose layers carry a state along the row
(Mamba, Qwen3-Next), or that count distances in the row instead of positions (ALiBi: Bloom), mix them silently."""

from typing import Any

import torch
from torch import Tensor

from core.errors import ConfigError
from learner.sequences.packing import Example, to_tensors

_TRIED = 12  # tokens of each of the two
_AGREEMENT = 1e-4
_STATEFUL = ("mamba", "linear_attention", "recurrent", "rwkv", "conv")


@torch.no_grad()
def require_packable(model: Any) -> None:
    """Raise ConfigError, naming the setting, the kind of model and why, unless positions alone keep sequences apart."""
    config = model.config.get_text_config()
    ids_T = torch.arange(2 * _TRIED, device=model.device) % config.vocab_size
    positions_T = torch.arange(_TRIED, device=model.device).repeat(2)
    try:
        packed_TD = _hidden(model, ids_T, position_ids=positions_T[None])
    except (TypeError, ValueError):  # it takes no positions: nothing tells it where a sequence begins
        packed_TD = None
    alone_TD = _hidden(model, ids_T[_TRIED:])
    if packed_TD is not None and _agree(packed_TD[_TRIED:], alone_TD):
        return
    raise ConfigError(f"learner.compute.packed: {type(model).__name__} cannot: {_why(config)}. Leave it false")


@torch.no_grad()
def require_rows(model: Any) -> None:
    """Raise ConfigError unless an attention mask keeps sequences of a row apart (`learner.sequences.packing`)."""
    was_training = model.training
    model.eval()
    config = model.config.get_text_config()
    first, second = (
        Example([n % config.vocab_size for n in range(start, start + _TRIED)], [1.0] * _TRIED) for start in (0, _TRIED)
    )
    try:
        packed_TD, alone_TD = (_masked(model, examples) for examples in ([first, second], [second]))
        is_apart = _agree(packed_TD[_TRIED:], alone_TD)
    except (TypeError, ValueError, RuntimeError):  # it takes no mask of pairs, or no positions
        is_apart = False
    model.train(was_training)
    if not is_apart:
        why = _why(config)
        raise ConfigError(
            f"{type(model).__name__} cannot be midtrained: documents stand side by side in rows, and {why}"
        )


def _masked(model: Any, examples: list[Example]) -> Tensor:
    rows = to_tensors([examples], _TRIED * len(examples), 0)
    ids_T = rows.ids_RT[0].to(model.device)
    where = {"position_ids": rows.positions_RT, "attention_mask": rows.mask_R1TT}
    return _hidden(model, ids_T, **{name: tensor.to(model.device) for name, tensor in where.items()})


def _agree(packed_TD: Tensor, alone_TD: Tensor) -> bool:
    return float((packed_TD - alone_TD).abs().max()) <= _AGREEMENT * float(alone_TD.abs().max())


def _hidden(model: Any, ids_T: Tensor, **where: Tensor) -> Tensor:
    return model.base_model(input_ids=ids_T[None], use_cache=False, **where).last_hidden_state[0].float()  # type: ignore[no-any-return]


def _why(config: Any) -> str:
    layers = {config.model_type, *(getattr(config, "layer_types", None) or ())}
    if any(word in layer for layer in layers for word in _STATEFUL):
        return "its layers carry a state from token to token, and from one sequence of a row into the next"
    if getattr(config, "alibi", config.model_type in ("bloom", "mpt")):
        return "it weighs tokens by their distance in the row (ALiBi), and takes no positions that begin anew"
    return "what stands before a sequence in its row changes it"
