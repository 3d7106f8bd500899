"""The shape of a causal LM, as its `config.json` says, and what follows from it: parameters, adapters, cached keys."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from core.errors import ConfigError
from core.model.memory import Shapes, adapter_parameters, parameters_of, shapes_by_config

KINDS = ("llama", "mistral", "qwen2", "qwen3")


@dataclass(frozen=True)
class ModelShape:
    kind: str
    shapes: Shapes
    """The shapes of all tensors."""
    layers: int
    hidden: int
    intermediate: int
    heads: int
    key_value_width: int
    context: int

    @cached_property
    def parameters(self) -> int:
        return parameters_of(self.shapes)

    def adapter_parameters(self, rank: int) -> int:
        """Count the parameters of adapters beside every matrix but the output's (arXiv:2106.09685)."""
        return adapter_parameters(self.shapes, rank)

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
    head_size = count("head_dim", hidden // heads)
    count("vocab_size")
    return ModelShape(
        kind=kind,
        layers=count("num_hidden_layers"),
        hidden=hidden,
        intermediate=count("intermediate_size"),
        heads=heads,
        key_value_width=count("num_key_value_heads", heads) * head_size,
        context=count("max_position_embeddings"),
        shapes=shapes_by_config(config),
    )
