"""The shape of a causal LM, as its `config.json` says, and what follows from it: parameters, adapters, cached keys.

Llama's decoder (arXiv:2302.13971) and its relatives differ in biases and norms alone."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from core.errors import ConfigError

KINDS = ("llama", "mistral", "qwen2", "qwen3")


@dataclass(frozen=True)
class ModelShape:
    kind: str
    layers: int
    hidden: int
    intermediate: int
    heads: int
    key_value_heads: int
    head_size: int
    vocabulary: int
    context: int
    is_tied: bool
    """Whether the output matrix is the embeddings' own."""
    has_attention_bias: bool
    has_mlp_bias: bool

    @property
    def attention_width(self) -> int:
        return self.heads * self.head_size

    @property
    def key_value_width(self) -> int:
        return self.key_value_heads * self.head_size

    def linear_sizes(self) -> Iterator[tuple[int, int]]:
        """Yield (inputs, outputs) of each matrix of one layer: queries, keys, values, output; gate, up, down."""
        yield self.hidden, self.attention_width
        yield self.hidden, self.key_value_width
        yield self.hidden, self.key_value_width
        yield self.attention_width, self.hidden
        yield self.hidden, self.intermediate
        yield self.hidden, self.intermediate
        yield self.intermediate, self.hidden

    @property
    def parameters(self) -> int:
        embeddings = self.vocabulary * self.hidden * (1 if self.is_tied else 2)
        return embeddings + self.layers * self._layer_parameters + self.hidden

    @property
    def _layer_parameters(self) -> int:
        matrices = sum(inputs * outputs for inputs, outputs in self.linear_sizes())
        norms = 2 * self.hidden + (2 * self.head_size if self.kind == "qwen3" else 0)
        return matrices + norms + self._layer_biases

    @property
    def _layer_biases(self) -> int:
        inner = self.attention_width + 2 * self.key_value_width
        match self.kind, self.has_attention_bias:
            case "qwen2", _:
                attention = inner
            case _, True:
                attention = inner + self.hidden
            case _:
                attention = 0
        return attention + (2 * self.intermediate + self.hidden if self.has_mlp_bias else 0)

    def adapter_parameters(self, rank: int) -> int:
        """Count the parameters of adapters beside every matrix but the output's (arXiv:2106.09685)."""
        return self.layers * rank * sum(inputs + outputs for inputs, outputs in self.linear_sizes())

    @property
    def cached_numbers(self) -> int:
        """The numbers that an engine keeps of one token: its keys and values in every layer."""
        return 2 * self.layers * self.key_value_width


def read_shape(directory: Path) -> ModelShape:
    """Read the shape. Raises ConfigError naming the file, and the field or the type that is not known."""
    path = directory / "config.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: {error}") from error
    if not isinstance(config, dict):
        raise ConfigError(f"{path}: no object")
    kind = config.get("model_type")
    if kind not in KINDS:
        raise ConfigError(
            f"{path}: model_type is {kind!r}, and profiles are known of {', '.join(KINDS)}: "
            "write onward.toml by hand, as docs/settings.md says"
        )
    return _shape(path, str(kind), config)


def _shape(path: Path, kind: str, config: Mapping[str, Any]) -> ModelShape:
    def count(name: str, default: int | None = None) -> int:
        value = default if config.get(name) is None else config[name]
        if not isinstance(value, int) or value < 1:
            raise ConfigError(f"{path}: {name} is {value!r}, not a positive number")
        return value

    hidden, heads = count("hidden_size"), count("num_attention_heads")
    return ModelShape(
        kind=kind,
        layers=count("num_hidden_layers"),
        hidden=hidden,
        intermediate=count("intermediate_size"),
        heads=heads,
        key_value_heads=count("num_key_value_heads", heads),
        head_size=count("head_dim", hidden // heads),
        vocabulary=count("vocab_size"),
        context=count("max_position_embeddings"),
        is_tied=bool(config.get("tie_word_embeddings", False)),
        has_attention_bias=bool(config.get("attention_bias", False)),
        has_mlp_bias=bool(config.get("mlp_bias", False)),
    )
