"""Loading of a Hugging Face causal LM for serving from slots.

Llama-shaped decoders use the lean forward pass, with plain modules where their config is known in every field, so that
transformers need not be imported; anything else is computed by transformers' own modules, with attention over the slot
cache. A check at load compares the result with transformers'. For plain modules it is made once and recorded: the
next start on the same model, code, packages and processor does without."""

import copy
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from core.errors import ConfigError
from core.model.files import check_model_files
from core.settings import ServingSettings
from serving.engines.local.attention import AttentionPlan, Row, SlotCache
from serving.engines.local.llama_forward import LlamaForward, Progress, Rotary, is_lean
from serving.engines.local.modules.check_record import digest_of_check, is_recorded, write_record
from serving.engines.local.modules.plain import PlainConfig, PlainDecoder, read_plain_config
from serving.engines.local.modules.products import WORTH_PACKING, Changes, packs
from serving.engines.model_facts import EXPERTS

_CHECK_TOKENS = 12
_CHECK_SPLIT = 7
_TOLERANCE = {torch.float32: 2e-3, torch.bfloat16: 0.15, torch.float16: 0.05}
# Rotations that depend on how long the batch is: keys computed earlier would be of another rotation.
_MOVING_ROPE = ("dynamic", "longrope")


class Decoder:
    """One version's model, ready to compute from slots."""

    def __init__(
        self,
        model: Any,
        rotary: Rotary | None,
        *,
        is_packed: bool = False,
        has_weights: bool = True,
        progress: Progress | None = None,
    ) -> None:
        """`model`: transformers' or a `PlainDecoder`; `rotary`: given where it is to be computed leanly.

        `is_packed`: its weights are as they were stored, and are packed now. Without weights it is a template."""
        self.model = model
        self.rotary = rotary
        self.is_packed = is_packed
        self._lean: LlamaForward | None = None
        if rotary is not None and has_weights:
            self._lean = LlamaForward(model, rotary, is_packed=is_packed, progress=progress)
        self._like = next(model.parameters())

    def alike(self, model: nn.Module, progress: Progress | None = None) -> "Decoder":
        """Another version, computed in the same way."""
        return Decoder(model, self.rotary, is_packed=self.is_packed, progress=progress)

    def takes(self, changes: Changes) -> bool:
        """Return whether an adapter can be computed beside these weights, rather than be merged with them."""
        return self.is_packed and self._lean is not None and self._lean.takes(changes)

    def adapted(self, changes: Changes, scale: float) -> "Decoder":
        """Another version: these weights, shared, with an adapter beside them that they take."""
        assert self._lean is not None
        other = copy.copy(self)
        other._lean = self._lean.adapted(changes, scale)
        return other

    @property
    def vocabulary(self) -> int:
        size: int = self.model.config.get_text_config().vocab_size
        return size

    @torch.inference_mode()
    def forward(
        self,
        cache: SlotCache,
        rows: Sequence[Row],
        tokens: Sequence[int],
        *,
        all_positions: bool = False,
        must_give_way: Callable[[], bool] | None = None,
    ) -> Tensor:
        """Compute the rows' packed `tokens` in one pass, keeping keys and values in their slots.

        Returns logits [R, V] of each row's last token, or [N, V] of all. Rows of one token come first.
        Raises GaveWay when `must_give_way` says so before a layer.
        """
        like = self._like
        if self._lean is not None and must_give_way is None:
            logits = self._lean.step(rows, tokens, cache, all_positions=all_positions)
            if logits is not None:
                return logits
        plan = AttentionPlan(rows, cache.slot_tokens, like.device, like.dtype, must_give_way)
        tokens_N = torch.tensor(tokens, device=like.device)
        keep = None if all_positions else plan.last_R
        if self._lean is not None:
            return self._lean(tokens_N, plan, cache, keep)
        from serving.engines.local.modules.given import compute

        return compute(self.model, tokens_N, plan, cache, keep)


def load_decoder(directory: Path, settings: ServingSettings, record: Path | None = None) -> Decoder:
    """Load the directory's model on the settings' device and dtype, compared with transformers at the latest now.

    The weights of a decoder that was compared before are not loaded again: it is a template for versions. `record`:
    the file that says so. Raises ConfigError naming the setting that does not fit."""
    check_model_files(directory)
    local = settings.local
    dtype = getattr(torch, local.dtype)
    config = read_plain_config(directory)
    if config is None:
        return _compared(directory, settings, dtype)
    context = context_length(config, settings)
    digest = digest_of_check(directory, local.device, local.dtype, context)
    if is_recorded(record, digest):
        return _plain(config, local.device, dtype, context)
    decoder = _compared(directory, settings, dtype, config)
    if isinstance(decoder.model, PlainDecoder):
        write_record(record, digest)
    return decoder


def _plain(config: PlainConfig, device: str, dtype: torch.dtype, context: int) -> Decoder:
    """Return a template."""
    model = PlainDecoder(config, device, dtype)
    rotary = Rotary.of(model.model.rotary_emb, next(model.parameters()), context)
    is_packed = model.largest >= WORTH_PACKING and packs(device, dtype)
    return Decoder(model, rotary, is_packed=is_packed, has_weights=False)


def _compared(
    directory: Path, settings: ServingSettings, dtype: torch.dtype, plain: PlainConfig | None = None
) -> Decoder:
    """Load transformers' modules, and choose the fastest way that computes as they do."""
    from serving.engines.local.modules.given import load_given

    given = load_given(directory, settings.local.device, dtype)
    context = context_length(given.config, settings)
    _refuse_unfit(given.config, context)
    return _fastest_that_is_right(given, context, plain)


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
    if differing := text.per_layer_attributes:
        raise ConfigError(
            f"serving.model: layers that differ in {', '.join(sorted(differing))} have no place in the slot cache"
        )
    if getattr(text, "kv_lora_rank", None) is not None:
        raise ConfigError("serving.model: latent attention (kv_lora_rank) has no place in the slot cache")
    if any((getattr(text, name, None) or 0) > 1 for name in EXPERTS):
        raise ConfigError("serving.model: a mixture of experts, which the local engine cannot load; SGLang can")
    rope = getattr(text, "rope_parameters", None) or {}
    if rope.get("rope_type") in _MOVING_ROPE:
        raise ConfigError(f"serving.model: rope_type {rope['rope_type']} changes with the length of a batch")


def slot_cache(model: Any, slots: int, slot_tokens: int) -> SlotCache:
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


def _fastest_that_is_right(given: Any, context: int, plain: PlainConfig | None) -> Decoder:
    """Choose the fastest correct decoder. Raises ConfigError for an architecture that is computed wrongly."""
    from serving.engines.local.modules.given import own_logits

    draw = torch.Generator().manual_seed(0)
    tokens = torch.randint(given.config.get_text_config().vocab_size, (_CHECK_TOKENS,), generator=draw).tolist()
    like = next(given.parameters())
    expected_NV = own_logits(given, torch.tensor(tokens, device=like.device))
    difference = float("inf")
    for decoder in _ways(given, like, context, plain):
        difference = _difference(decoder, tokens, expected_NV)
        if difference <= _TOLERANCE[given.dtype]:
            return decoder
    raise ConfigError(
        f"serving.model: the engine computes {type(given).__name__} otherwise than transformers (by {difference:.2g})"
    )


def _ways(given: Any, like: Tensor, context: int, plain: PlainConfig | None) -> Iterator[Decoder]:
    """Yield the decoders that may compute as the given model does, the fastest to start and to run first."""
    rotary = Rotary.of(given.base_model.rotary_emb, like, context) if is_lean(given) else None
    if plain is not None and rotary is not None:
        own = _plain(plain, str(like.device), like.dtype, context)
        if rotary.is_same(own.rotary) and _take_weights(own.model, given):
            yield own.alike(own.model)
    if rotary is not None:
        yield Decoder(given, rotary)
    yield Decoder(given, None)


def _take_weights(own: PlainDecoder, given: nn.Module) -> bool:
    """Return whether both are of the same tensors, which are then shared."""
    theirs, ours = given.state_dict(), own.state_dict()
    shapes = [{name: tensor.shape for name, tensor in each.items()} for each in (theirs, ours)]
    if shapes[0] != shapes[1]:
        return False
    own.load_state_dict(theirs, assign=True)
    own.tie()
    return True


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
