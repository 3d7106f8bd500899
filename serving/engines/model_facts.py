"""Facts from a Hugging Face model directory, read without any tensor library."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from core.errors import ConfigError
from core.model.files import check_model_files

EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")


@dataclass(frozen=True)
class ModelFacts:
    vocabulary: int
    context_length: int
    is_moe: bool
    """Whether tokens are routed to experts, so that a learner must know which."""


def read_model_facts(directory: Path) -> ModelFacts:
    """Read the facts. Raises ConfigError naming the file and the field.

    It also refuses a tokenizer with ids that the model lacks, and weights in a format that may not be read."""
    check_model_files(directory)
    path = directory / "config.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: {error}") from error
    if not isinstance(config, dict):
        raise ConfigError(f"{path}: no object")
    text = config.get("text_config") or {}
    if not isinstance(text, dict):
        raise ConfigError(f"{path}: text_config is {text!r}, no object")
    config = {**config, **text}
    facts = ModelFacts(
        vocabulary=_count(path, config, "vocab_size"),
        context_length=_count(path, config, "max_position_embeddings"),
        is_moe=any(_count(path, config, name) > 1 for name in EXPERTS if config.get(name)),
    )
    _check_tokenizer(directory / "tokenizer.json", facts)
    return facts


def _count(path: Path, config: dict[str, Any], name: str) -> int:
    value = config.get(name)
    if type(value) is not int or value < 1:
        raise ConfigError(f"{path}: {name} is {value!r}, not a positive number")
    return value


def _check_tokenizer(path: Path, facts: ModelFacts) -> None:
    """Check the tokenizer: one of another model would otherwise show only by nonsense."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        ids = [*content["model"]["vocab"].values(), *(token["id"] for token in content.get("added_tokens", ()))]
        largest = int(max(ids, default=0))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"{path}: no tokenizer can be read ({error!r})") from error
    if largest >= facts.vocabulary:
        raise ConfigError(
            f"{path}: it has token {largest}, and the model's vocab_size is {facts.vocabulary}: "
            "model and tokenizer do not belong together"
        )
