"""A Hugging Face causal LM made ready to serve from slots: attention over the slot cache, fused norms, and a check at
load that it still computes what transformers computes."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from core.errors import ConfigError
from core.settings import ServingSettings
from serving.local.attention import NAME, Plan, Row, SlotCache, register_attention

_CHECK_TOKENS = 12
_CHECK_SPLIT = 7
_TOLERANCE = {torch.float32: 2e-3, torch.bfloat16: 0.15, torch.float16: 0.05}
# Rotations that depend on how long the batch is: keys computed earlier would be of another rotation.
_MOVING_ROPE = ("dynamic", "longrope")


class FusedRMSNorm(nn.Module):
    """The norm of transformers' `*RMSNorm` modules in one call (arXiv 1910.07467)."""

    def __init__(self, weight: nn.Parameter, epsilon: float) -> None:
        super().__init__()
        self.weight = weight
        self.epsilon = epsilon

    def forward(self, hidden_states: Tensor) -> Tensor:
        return F.rms_norm(hidden_states, self.weight.shape, self.weight, self.epsilon)


def load_model(directory: Path, settings: ServingSettings) -> PreTrainedModel:
    """The directory's model in eval mode on the settings' device and dtype, as `forward` wants it.
    Raises ConfigError naming the setting that does not fit."""
    register_attention()
    dtype = getattr(torch, settings.dtype)
    try:
        config = AutoConfig.from_pretrained(directory, local_files_only=True)
        model: Any = AutoModelForCausalLM.from_pretrained(directory, config=config, dtype=dtype, local_files_only=True)
    except (OSError, ValueError) as error:
        raise ConfigError(f"serving.model: {directory} is no Hugging Face causal LM ({error})") from error
    _refuse_unfit(config, context_length(config, settings))
    model = model.to(settings.device).eval().requires_grad_(False)
    _check(model)
    checked: PreTrainedModel = model
    return checked


def context_length(config: Any, settings: ServingSettings) -> int:
    """Tokens of prompt and answer together. Raises ConfigError where the setting exceeds the model's."""
    own: int = config.get_text_config().max_position_embeddings
    if settings.context_length is not None and settings.context_length > own:
        raise ConfigError(f"serving.context_length: {settings.context_length} is more than the model's {own}")
    return settings.context_length or own


def _refuse_unfit(config: Any, context: int) -> None:
    text = config.get_text_config()
    kinds = set(getattr(text, "layer_types", None) or ["full_attention"])
    if kinds - {"full_attention", "sliding_attention"}:
        raise ConfigError(f"serving.model: layers of type {', '.join(sorted(kinds))} have no place in the slot cache")
    window = getattr(text, "sliding_window", None)
    if window is not None and "sliding_attention" in kinds and window < context:
        raise ConfigError(f"serving.context_length: {context} is more than the model's attention window of {window}")
    rope = getattr(text, "rope_parameters", None) or {}
    if rope.get("rope_type") in _MOVING_ROPE:
        raise ConfigError(f"serving.model: rope_type {rope['rope_type']} changes with the length of a batch")


def slot_cache(model: PreTrainedModel, slots: int, slot_tokens: int) -> SlotCache:
    """Raises ConfigError when so much memory cannot be had."""
    text = model.config.get_text_config()
    size = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
    heads = getattr(text, "num_key_value_heads", None) or text.num_attention_heads
    like = next(model.parameters())
    try:
        return SlotCache([(heads, size)] * text.num_hidden_layers, slots, slot_tokens, like)
    except RuntimeError as error:
        wanted = 2 * text.num_hidden_layers * slots * slot_tokens * heads * size * like.element_size() / 2**30
        raise ConfigError(
            f"serving.slots, serving.context_length: {slots} slots of {slot_tokens} tokens take {wanted:.1f} GiB, "
            "which cannot be had"
        ) from error


@torch.inference_mode()
def forward(
    model: PreTrainedModel, cache: SlotCache, rows: Sequence[Row], tokens: Sequence[int], *, all_positions: bool = False
) -> Tensor:
    """Compute the rows' packed `tokens` in one pass, keeping keys and values in their slots.

    Returns logits [R, V] of each row's last token, or [N, V] of all. Rows of one token come first.
    """
    like = next(model.parameters())
    plan = Plan(rows, cache.slot_tokens, like.device, like.dtype)
    cache.plan = plan
    output = model(
        input_ids=torch.tensor(tokens, device=like.device)[None],
        position_ids=plan.positions_1N,
        past_key_values=cache,
        use_cache=True,
        logits_to_keep=0 if all_positions else plan.last_R,
        plan=plan,
    )
    logits: Tensor = output.logits[0]
    return logits


@torch.inference_mode()
def _check(model: PreTrainedModel) -> None:
    """Make the model the engine's, and hold it against itself as it was: one sequence, prefilled in two parts and
    decoded. Raises ConfigError for an architecture that the engine would compute wrongly."""
    device = next(model.parameters()).device
    vocabulary = model.config.get_text_config().vocab_size
    tokens = torch.randint(vocabulary, (_CHECK_TOKENS,), generator=torch.Generator().manual_seed(0)).tolist()
    model.set_attn_implementation("sdpa" if model._supports_sdpa else "eager")
    expected_NV = model(input_ids=torch.tensor([tokens], device=device), use_cache=False).logits[0].float()
    _fuse_norms(model)
    model.set_attn_implementation(NAME)
    cache = slot_cache(model, 2, _CHECK_TOKENS)
    parts = [(0, _CHECK_SPLIT), (_CHECK_SPLIT, _CHECK_TOKENS - 1), (_CHECK_TOKENS - 1, _CHECK_TOKENS)]
    try:
        got = [forward(model, cache, [Row(1, a, b)], tokens[a:b], all_positions=True).float() for a, b in parts]
    except TypeError as error:
        raise ConfigError(f"serving.model: {type(model).__name__} takes no attention function ({error})") from error
    got_NV = torch.cat(got)
    scale = expected_NV.abs().max().clamp_min(1.0)
    worst = ((got_NV - expected_NV).abs().max() / scale).item()
    if not worst <= _TOLERANCE[got_NV.dtype if model.dtype == torch.float32 else model.dtype]:
        raise ConfigError(
            f"serving.model: the engine computes {type(model).__name__} otherwise than transformers (by {worst:.2g})"
        )


def _fuse_norms(model: nn.Module) -> None:
    """Put FusedRMSNorm where it gives what the module gives."""
    for parent in list(model.modules()):
        norm: Any  # its attributes are dynamic
        for name, norm in list(parent.named_children()):
            if type(norm).__name__.endswith("RMSNorm") and hasattr(norm, "variance_epsilon"):
                fused = FusedRMSNorm(norm.weight, norm.variance_epsilon)
                probe = torch.linspace(-3, 3, norm.weight.numel(), device=norm.weight.device, dtype=norm.weight.dtype)
                if torch.allclose(norm(probe), fused(probe), rtol=1e-2 if probe.dtype != torch.float32 else 1e-5):
                    setattr(parent, name, fused)
