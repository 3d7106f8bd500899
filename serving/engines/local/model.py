"""Loading of a Hugging Face causal LM for serving from slots.

transformers' own modules compute, with attention over the slot cache; Llama-shaped decoders use the lean forward pass.
Either way a check at load compares the result with transformers'."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from core.errors import ConfigError
from core.model.files import LOCAL, check_model_files
from core.settings import ServingSettings
from serving.engines.local.attention import NAME, Plan, Row, SlotCache, register_attention
from serving.engines.local.llama_forward import LlamaForward, Rotary, is_lean

_CHECK_TOKENS = 12
_CHECK_SPLIT = 7
_TOLERANCE = {torch.float32: 2e-3, torch.bfloat16: 0.15, torch.float16: 0.05}
# Rotations that depend on how long the batch is: keys computed earlier would be of another rotation.
_MOVING_ROPE = ("dynamic", "longrope")


class Decoder:
    """One version's model, ready to compute from slots."""

    def __init__(self, model: PreTrainedModel, rotary: Rotary | None) -> None:
        """`rotary`: given where the model is to be computed leanly."""
        self.model = model
        self.rotary = rotary
        self._lean = None if rotary is None else LlamaForward(model, rotary)
        self._like = next(model.parameters())

    def alike(self, model: PreTrainedModel) -> "Decoder":
        """Another version, computed in the same way."""
        return Decoder(model, self.rotary)

    @property
    def vocabulary(self) -> int:
        size: int = self.model.config.get_text_config().vocab_size
        return size

    @torch.inference_mode()
    def forward(
        self, cache: SlotCache, rows: Sequence[Row], tokens: Sequence[int], *, all_positions: bool = False
    ) -> Tensor:
        """Compute the rows' packed `tokens` in one pass, keeping keys and values in their slots.

        Returns logits [R, V] of each row's last token, or [N, V] of all. Rows of one token come first.
        """
        like = self._like
        plan = Plan(rows, cache.slot_tokens, like.device, like.dtype)
        tokens_N = torch.tensor(tokens, device=like.device)
        if self._lean is not None:
            return self._lean(tokens_N, plan, cache, None if all_positions else plan.last_R)
        cache.plan = plan
        output = self.model(
            input_ids=tokens_N[None],
            position_ids=plan.positions_1N,
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=0 if all_positions else plan.last_R,
            plan=plan,
        )
        logits: Tensor = output.logits[0]
        return logits


def load_decoder(directory: Path, settings: ServingSettings) -> Decoder:
    """Load the directory's model on the settings' device and dtype, and compare it with transformers.

    Raises ConfigError naming the setting that does not fit."""
    register_attention()
    check_model_files(directory)
    dtype = getattr(torch, settings.local.dtype)
    try:
        config = AutoConfig.from_pretrained(directory, **LOCAL)
        model: Any = AutoModelForCausalLM.from_pretrained(
            directory, config=config, dtype=dtype, use_safetensors=True, **LOCAL
        )
    except (OSError, ValueError) as error:
        raise ConfigError(f"serving.model: {directory} is no Hugging Face causal LM ({error})") from error
    context = context_length(config, settings)
    _refuse_unfit(config, context)
    return _fastest_that_is_right(model.to(settings.local.device).eval().requires_grad_(False), context)


def context_length(config: Any, settings: ServingSettings) -> int:
    """Tokens of prompt and answer together. Raises ConfigError where the setting exceeds the model's."""
    own: int = config.get_text_config().max_position_embeddings
    if settings.context_length is not None and settings.context_length > own:
        raise ConfigError(f"serving.context_length: {settings.context_length} is more than the model's {own}")
    return settings.context_length or own


def _refuse_unfit(config: Any, context: int) -> None:
    text = config.get_text_config()
    window = getattr(text, "sliding_window", None)
    unnamed = "full_attention" if window is None else "sliding_attention"
    kinds = set(getattr(text, "layer_types", None) or [unnamed])
    if kinds - {"full_attention", "sliding_attention"}:
        raise ConfigError(f"serving.model: layers of type {', '.join(sorted(kinds))} have no place in the slot cache")
    if window is not None and "sliding_attention" in kinds and window < context:
        raise ConfigError(f"serving.context_length: {context} is more than the model's attention window of {window}")
    rope = getattr(text, "rope_parameters", None) or {}
    if rope.get("rope_type") in _MOVING_ROPE:
        raise ConfigError(f"serving.model: rope_type {rope['rope_type']} changes with the length of a batch")


def slot_cache(model: PreTrainedModel, slots: int, slot_tokens: int) -> SlotCache:
    """Allocate the cache. Raises ConfigError when there is not enough memory."""
    text = model.config.get_text_config()
    size = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
    heads = getattr(text, "num_key_value_heads", None) or text.num_attention_heads
    like = next(model.parameters())
    try:
        return SlotCache([(heads, size)] * text.num_hidden_layers, slots, slot_tokens, like)
    except RuntimeError as error:
        wanted = 2 * text.num_hidden_layers * slots * slot_tokens * heads * size * like.element_size() / 2**30
        raise ConfigError(
            f"serving.local.slots, serving.context_length: {slots} slots of {slot_tokens} tokens take "
            f"{wanted:.1f} GiB, which cannot be had"
        ) from error


def _fastest_that_is_right(model: PreTrainedModel, context: int) -> Decoder:
    """Choose the fastest correct decoder. Raises ConfigError for an architecture that is computed wrongly."""
    draw = torch.Generator().manual_seed(0)
    tokens = torch.randint(model.config.get_text_config().vocab_size, (_CHECK_TOKENS,), generator=draw).tolist()
    like = next(model.parameters())
    model.set_attn_implementation("sdpa" if model._supports_sdpa else "eager")
    with torch.inference_mode():
        expected_NV = model(input_ids=torch.tensor([tokens], device=like.device), use_cache=False).logits[0]
    model.set_attn_implementation(NAME)
    base: Any = model.base_model
    ways = [Rotary.of(base.rotary_emb, like, context), None] if is_lean(model) else [None]
    difference = float("inf")
    for rotary in ways:
        decoder = Decoder(model, rotary)
        difference = _difference(decoder, tokens, expected_NV)
        if difference <= _TOLERANCE[model.dtype]:
            return decoder
    raise ConfigError(
        f"serving.model: the engine computes {type(model).__name__} otherwise than transformers (by {difference:.2g})"
    )


def _difference(decoder: Decoder, tokens: list[int], expected_NV: Tensor) -> float:
    """Largest difference, as a share of the largest logit, over a sequence prefilled in two parts and decoded."""
    cache = slot_cache(decoder.model, 2, _CHECK_TOKENS)
    parts = [(0, _CHECK_SPLIT), (_CHECK_SPLIT, _CHECK_TOKENS - 1), (_CHECK_TOKENS - 1, _CHECK_TOKENS)]
    try:
        got = [decoder.forward(cache, [Row(1, a, b)], tokens[a:b], all_positions=True) for a, b in parts]
    except TypeError as error:
        raise ConfigError(f"serving.model: {type(decoder.model).__name__} takes no attention function") from error
    scale = expected_NV.abs().max().clamp_min(1.0)
    return float((torch.cat(got) - expected_NV).abs().max() / scale)
