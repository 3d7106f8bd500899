"""Llama-shaped decoders as plain torch modules, made from `config.json` alone.

They hold tensors under the names that transformers gives them, and `LlamaForward` computes with them. Importing
transformers' own modules takes longer than everything else that a service does before it serves."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from core.model.files import check_fits, weight_files
from core.model.weights_digest import tensors_of

Empty = Callable[..., Tensor]
"""Makes a tensor of the given sizes."""
_NORMS_OF_HEADS = {"llama": False, "qwen3": True}
"""The kinds of models that are known here, and whether they normalise each head's queries and keys."""
_NO_PART = {
    "_model_name_or_path", "_name_or_path", "architectures", "attention_dropout", "chunk_size_feed_forward", "dtype",
    "id2label", "initializer_range", "is_encoder_decoder", "label2id", "layer_types", "max_window_layers",
    "output_attentions", "output_hidden_states", "pad_token_id", "pretraining_tp", "problem_type", "return_dict",
    "torch_dtype", "transformers_version", "unk_token_id", "use_cache",
}  # fmt: skip
"""Fields of a config that change nothing of what is computed: `layer_types` is checked by itself."""


@dataclass(frozen=True)
class PlainConfig:
    """The fields of `config.json` that describe a decoder, under transformers' names."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    max_position_embeddings: int
    rms_norm_eps: float
    rope_theta: float
    tie_word_embeddings: bool
    attention_bias: bool
    mlp_bias: bool
    has_norms_of_heads: bool
    bos_token_id: Any = None
    eos_token_id: Any = None

    def get_text_config(self) -> "PlainConfig":
        """Return the part for text: all of it."""
        return self


def read_plain_config(directory: Path) -> PlainConfig | None:
    """Return the config of a model that is known here in every field, or None."""
    try:
        given = json.loads((directory / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None  # whoever loads it says why
    if not isinstance(given, dict) or given.get("model_type") not in _NORMS_OF_HEADS:
        return None
    fields = {name: value for name, value in given.items() if name not in _NO_PART}
    theta = _plain_rope(fields.pop("rope_parameters", None))
    is_plain = (
        _are_all_full(given.get("layer_types"))
        and fields.pop("hidden_act", None) == "silu"
        and fields.pop("sliding_window", None) is None
        and not fields.pop("use_sliding_window", False)
    )
    has_norms = _NORMS_OF_HEADS[fields.pop("model_type")]
    fields = {"attention_bias": False, "mlp_bias": False, "tie_word_embeddings": False} | fields
    if theta is None or not is_plain:
        return None
    try:
        return PlainConfig(**fields, rope_theta=theta, has_norms_of_heads=has_norms)
    except TypeError:  # a field that is unknown here, or lacks
        return None


def _are_all_full(layer_types: Any) -> bool:
    """Return whether every layer attends to all that is before, as where nothing is said."""
    return not layer_types or (isinstance(layer_types, list) and all(each == "full_attention" for each in layer_types))


def check_plain_weights(directory: Path) -> None:
    """Check that the weights of a model that is known here fit its config. Raises ConfigError."""
    config = read_plain_config(directory)
    if config is not None:
        held = {name: tensor.shape for name, tensor in tensors_of(weight_files(directory)).items()}
        decoder = PlainDecoder(config, "meta", torch.float32)
        check_fits(directory, held, {name: tuple(each.shape) for name, each in decoder.named_parameters()})


def _plain_rope(rope: Any) -> float | None:
    """Return the base of a rotation without any scaling, or None."""
    match rope:
        case {"rope_type": "default", "rope_theta": int() | float() as theta, **rest} if not rest:
            return float(theta)
    return None


class PlainDecoder(nn.Module):
    """A decoder whose tensors have their shapes and take no memory: a version's are put in their places."""

    def __init__(self, config: PlainConfig, device: str, dtype: torch.dtype) -> None:
        super().__init__()
        nothing = torch.zeros(1, device=device, dtype=dtype)

        def empty(*sizes: int) -> Tensor:
            return nothing.expand(sizes)

        self.config = config
        self.model = _Base(config, empty)
        self.lm_head = _Linear(config.hidden_size, config.vocab_size, False, empty)
        self.tie()
        self.eval().requires_grad_(False)

    def tie(self) -> None:
        """Make the head's weights those of the embedding, where the config says so."""
        if self.config.tie_word_embeddings:
            self.lm_head.weight = self.model.embed_tokens.weight

    @property
    def largest(self) -> int:
        """The elements of a layer's largest matrix."""
        return self.config.hidden_size * self.config.intermediate_size


class _Base(nn.Module):
    def __init__(self, config: PlainConfig, empty: Empty) -> None:
        super().__init__()
        self.embed_tokens = _Embedding(config.vocab_size, config.hidden_size, empty)
        self.layers = nn.ModuleList(_Layer(config, empty) for _ in range(config.num_hidden_layers))
        self.norm = _Norm(config.hidden_size, config.rms_norm_eps, empty)
        self.rotary_emb = PlainRotary(config)


class _Layer(nn.Module):
    def __init__(self, config: PlainConfig, empty: Empty) -> None:
        super().__init__()
        self.self_attn = _Attention(config, empty)
        self.mlp = _Mlp(config, empty)
        self.input_layernorm = _Norm(config.hidden_size, config.rms_norm_eps, empty)
        self.post_attention_layernorm = _Norm(config.hidden_size, config.rms_norm_eps, empty)


class _Attention(nn.Module):
    def __init__(self, config: PlainConfig, empty: Empty) -> None:
        super().__init__()
        hidden, size, bias = config.hidden_size, config.head_dim, config.attention_bias
        self.head_dim, self.scaling = size, size**-0.5
        self.q_proj = _Linear(hidden, config.num_attention_heads * size, bias, empty)
        self.k_proj = _Linear(hidden, config.num_key_value_heads * size, bias, empty)
        self.v_proj = _Linear(hidden, config.num_key_value_heads * size, bias, empty)
        self.o_proj = _Linear(config.num_attention_heads * size, hidden, bias, empty)
        if config.has_norms_of_heads:
            self.q_norm = _Norm(size, config.rms_norm_eps, empty)
            self.k_norm = _Norm(size, config.rms_norm_eps, empty)


class _Mlp(nn.Module):
    def __init__(self, config: PlainConfig, empty: Empty) -> None:
        super().__init__()
        hidden, inner, bias = config.hidden_size, config.intermediate_size, config.mlp_bias
        self.gate_proj = _Linear(hidden, inner, bias, empty)
        self.up_proj = _Linear(hidden, inner, bias, empty)
        self.down_proj = _Linear(inner, hidden, bias, empty)
        self.act_fn = nn.SiLU()


class _Linear(nn.Module):
    """Torch's linear module without its random initial weights: drawing them takes longer than loading."""

    def __init__(self, in_features: int, out_features: int, has_bias: bool, empty: Empty) -> None:
        super().__init__()
        self.out_features = out_features
        self.weight = nn.Parameter(empty(out_features, in_features))
        self.bias = nn.Parameter(empty(out_features)) if has_bias else None

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.bias)


class _Embedding(nn.Module):
    def __init__(self, count: int, size: int, empty: Empty) -> None:
        super().__init__()
        self.weight = nn.Parameter(empty(count, size))


class _Norm(nn.Module):
    def __init__(self, size: int, epsilon: float, empty: Empty) -> None:
        super().__init__()
        self.weight = nn.Parameter(empty(size))
        self.variance_epsilon = epsilon


class PlainRotary(nn.Module):
    """The angles of positions, in float32 (RoFormer, arXiv 2104.09864)."""

    def __init__(self, config: PlainConfig) -> None:
        super().__init__()
        self._theta, self._size = config.rope_theta, config.head_dim

    def forward(self, like: Tensor, positions_1T: Tensor) -> tuple[Tensor, Tensor]:
        """Return the cosine and sine [1, T, D] of each position, of the dtype of `like`."""
        frequencies = 1.0 / (self._theta ** (torch.arange(0, self._size, 2, dtype=torch.float) / self._size))
        angles_1TF = positions_1T[..., None].float() * frequencies.to(like.device)
        angles_1TD = torch.cat((angles_1TF, angles_1TF), dim=-1)
        return angles_1TD.cos().to(like.dtype), angles_1TD.sin().to(like.dtype)
