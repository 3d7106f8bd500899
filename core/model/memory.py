"""The bytes that a learner needs for a model: arithmetic over the shapes of its tensors, without any tensor library.

Shapes are read from the headers of a model's files (`shapes_in`), or follow from its config.json (`shapes_by_config`),
for dense models of the kind of Llama, Qwen and Mistral that are not on this machine. What is said here is measured by
`python -m bench learner_memory` and `tests/learner/model/test_memory.py`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from math import prod
from pathlib import Path
from typing import Any

from core.errors import ConfigError
from core.model.weights_digest import tensors_of

Shapes = Mapping[str, tuple[int, ...]]
_WIDE, _HALF = 4, 2  # bytes of a number
_MOMENTS = 2  # AdamW's
_EMBEDDINGS = ("embed_tokens.weight", "lm_head.weight", "wte.weight", "embed_out.weight", "embed_in.weight")


def shapes_in(files: Sequence[Path]) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the tensors in safetensors files. Raises WeightsError naming a file that cannot be read."""
    return {name: stored.shape for name, stored in tensors_of(files).items()}


def shapes_by_config(config: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """Return the shapes of a dense model by its config.json. Raises ConfigError naming what is missing or unknown."""
    if experts := [name for name in config if "expert" in name and config[name]]:
        raise ConfigError(f"config.json: {experts[0]}: the shapes of a mixture of experts are read from its files")
    wanted = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "vocab_size")
    if missing := [name for name in wanted if name not in config]:
        raise ConfigError(f"config.json: no {', '.join(missing)}")
    hidden, inner, layers, heads, vocabulary = (int(config[name]) for name in wanted)
    width = int(config.get("head_dim") or hidden // heads)
    pairs = int(config.get("num_key_value_heads") or heads)
    block: dict[str, tuple[int, ...]] = {
        "self_attn.q_proj.weight": (heads * width, hidden),
        "self_attn.k_proj.weight": (pairs * width, hidden),
        "self_attn.v_proj.weight": (pairs * width, hidden),
        "self_attn.o_proj.weight": (hidden, heads * width),
        "mlp.gate_proj.weight": (inner, hidden),
        "mlp.up_proj.weight": (inner, hidden),
        "mlp.down_proj.weight": (hidden, inner),
        "input_layernorm.weight": (hidden,),
        "post_attention_layernorm.weight": (hidden,),
        **_small_ones(config, heads * width, pairs * width, width),
    }
    shapes = {f"model.layers.{number}.{name}": shape for number in range(layers) for name, shape in block.items()}
    head = {} if config.get("tie_word_embeddings", False) else {"lm_head.weight": (vocabulary, hidden)}
    return {"model.embed_tokens.weight": (vocabulary, hidden), **shapes, "model.norm.weight": (hidden,), **head}


def _small_ones(config: Mapping[str, Any], queries: int, keys: int, width: int) -> dict[str, tuple[int, ...]]:
    kind = config.get("model_type")
    if kind == "qwen3":
        return {"self_attn.q_norm.weight": (width,), "self_attn.k_norm.weight": (width,)}
    if kind == "qwen2":
        return {f"self_attn.{name}_proj.bias": (size,) for name, size in (("q", queries), ("k", keys), ("v", keys))}
    return {}


def parameters_of(shapes: Shapes) -> int:
    return sum(map(prod, shapes.values()))


def adapter_parameters(shapes: Shapes, rank: int) -> int:
    """Return how many numbers adapters have beside all of the model's matrices but embedding and output."""
    return sum(rank * sum(shapes[name]) for name in _adapted(shapes))


def _adapted(shapes: Shapes) -> list[str]:
    return [name for name, shape in shapes.items() if len(shape) == 2 and not name.endswith(_EMBEDDINGS)]


@dataclass(frozen=True)
class LearnerBytes:
    """The bytes of a learner on each of its cards, by what they are for."""

    weights: int
    """The model: the frozen base as it is stored, with its adapters; or the weights that train, in float32."""
    moments: int
    gradients: int
    """Held from the first micro-batch of an update to its step."""
    anchor: int
    """0 where adapters train: it is the base without them."""
    gathered: int
    """With several cards: the layers, embedding and output matrix that are whole while they compute."""
    activations: int
    """Kept by a micro-batch's forward pass for its backward pass."""

    @property
    def total(self) -> int:
        return sum(getattr(self, field.name) for field in fields(self))


@dataclass(frozen=True)
class LearnerPlan:
    """A learner's way to compute. `positions`: of a micro-batch; `stored`: bytes of a number in the model's files."""

    rank: int = 0
    cards: int = 1
    positions: int = 1024
    is_held: bool = True
    """Whether a KL term holds the policy near the anchor."""
    checkpointed: bool = False
    computed: int = _WIDE
    stored: int = _HALF


def learner_bytes(shapes: Shapes, plan: LearnerPlan) -> LearnerBytes:
    """Return what a learner needs on each card; what is shared out is rounded up.

    Not counted: the programs themselves, and buffers of at most some tens of MB."""
    whole, adapters = parameters_of(shapes), adapter_parameters(shapes, plan.rank)
    trained = adapters if plan.rank else whole
    kept = whole * plan.stored + adapters * _WIDE if plan.rank else whole * _WIDE
    is_apart = plan.is_held and not plan.rank
    return LearnerBytes(
        weights=_share(kept, plan),
        moments=_share(trained * _WIDE * _MOMENTS, plan),
        gradients=_share(trained * _WIDE, plan),
        anchor=_share(whole * plan.stored, plan) if is_apart else 0,
        gathered=_gathered(shapes, plan) if plan.cards > 1 else 0,
        activations=_activations(shapes, plan),
    )


def _share(numbers: int, plan: LearnerPlan) -> int:
    return -(-numbers // plan.cards)


def _gathered(shapes: Shapes, plan: LearnerPlan) -> int:
    """Two layers, since the next is fetched while one computes, and what stands outside of layers."""
    layers: dict[str, int] = {}
    for name, shape in shapes.items():
        where = _layer(name)
        layers[where] = layers.get(where, 0) + prod(shape)
    outside = layers.pop("", 0)
    return (outside + 2 * max(layers.values(), default=0)) * (plan.stored if plan.rank else _WIDE)


def _layer(name: str) -> str:
    """Return the number of a tensor's layer, which is in its name; "" for one outside of layers."""
    return next((part for part in name.split(".") if part.isdigit()), "")


def _activations(shapes: Shapes, plan: LearnerPlan) -> int:
    """Estimate what operations keep: as many numbers as the matrices of a layer have inputs and outputs.

    Checkpointed, one state a layer, and all of one layer."""
    inputs = {name: shapes[name][1] + shapes[name][0] for name in _adapted(shapes)}
    layers = len({_layer(name) for name in inputs} - {""}) or 1
    a_layer = sum(inputs.values()) // layers
    hidden = min((shapes[name][1] for name in inputs), default=0)
    numbers = layers * hidden + a_layer if plan.checkpointed else layers * a_layer
    return plan.positions * numbers * plan.computed
