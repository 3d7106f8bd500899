"""transformers' own modules, computing from slots.

They compute the models that have no plain modules, and are what plain modules are compared with. Importing
transformers' modelling takes seconds, so this file is imported only where it is needed."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AttentionInterface, AutoConfig, AutoModelForCausalLM, Cache

from core.errors import ConfigError
from core.model.files import LOCAL, check_weights, refuse_unfit
from serving.engines.local.attention import NAME, AttentionPlan, SlotCache, slot_attention


def load_given(directory: Path, device: str, dtype: torch.dtype) -> Any:
    """Load the directory's model. Raises ConfigError where it is no Hugging Face causal LM, or not whole.

    Where tensors lack, transformers makes them of random numbers, and says so in a log alone."""
    AttentionInterface.register(NAME, slot_attention)
    try:
        config = AutoConfig.from_pretrained(directory, **LOCAL)
        check_weights(directory)
        told: dict[str, Any] = {"output_loading_info": True, "ignore_mismatched_sizes": True}  # which we refuse
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            directory, config=config, dtype=dtype, use_safetensors=True, **told, **LOCAL
        )
        model, found = loaded
    except (OSError, ValueError) as error:
        raise ConfigError(f"serving.model: {directory} is no Hugging Face causal LM ({error})") from error
    except ImportError as error:  # of who reads weights that are quantized in some way
        raise ConfigError(f"serving.model: {directory} wants a package that is not installed ({error})") from error
    refuse_unfit(directory, found["missing_keys"], {name for name, *_ in found["mismatched_keys"]})
    return model.to(device).eval().requires_grad_(False)


@torch.inference_mode()
def own_logits(model: Any, tokens_N: Tensor) -> Tensor:
    """Return what transformers computes [N, V] by itself; then the model attends over slots."""
    model.set_attn_implementation("sdpa" if model._supports_sdpa else "eager")
    logits_NV: Tensor = model(input_ids=tokens_N[None], use_cache=False).logits[0]
    model.set_attn_implementation(NAME)
    return logits_NV


class SlotsOfModules(Cache):
    """A slot cache as transformers' layers know one, for one step.

    They hand their new keys and values to `update`, and get the layer's whole tensors back for `slot_attention`, which
    knows from the plan what to read."""

    def __init__(self, cache: SlotCache, plan: AttentionPlan) -> None:
        super().__init__(layers=[])
        self._cache, self._plan = cache, plan

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *_args: Any, **_kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """`key_states` and `value_states`: [1, K, N, D]."""
        return self._cache.write(layer_idx, key_states[0].transpose(0, 1), value_states[0].transpose(0, 1), self._plan)

    def get_seq_length(self, *_args: Any, **_kwargs: Any) -> int:
        """Positions are given explicitly; nothing may be derived from a length common to all rows."""
        return 0


@torch.inference_mode()
def compute(model: Any, tokens_N: Tensor, plan: AttentionPlan, cache: SlotCache, keep: Tensor | None) -> Tensor:
    """Return logits [R, V] of the packed tokens that `keep` [R] names, or of all."""
    output = model(
        input_ids=tokens_N[None],
        position_ids=plan.positions_1N,
        past_key_values=SlotsOfModules(cache, plan),
        use_cache=True,
        logits_to_keep=0 if keep is None else keep,
        plan=plan,
    )
    logits: Tensor = output.logits[0]
    return logits
