"""A corpus directory as token ids: files of JSON lines, {"messages": [...], "tools": [...]} or {"text": ...}.

Of a conversation what the assistant says counts whole, the rest a little: it is context rather than a thing to imitate.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from core.errors import ConfigError

CONTEXT_WEIGHT = 0.1


@dataclass(frozen=True)
class Example:
    """`weights[i]` is the loss weight of predicting `token_ids[i]`."""

    token_ids: list[int]
    weights: list[float]


def read_corpus(directory: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """(file:line, document) in a fixed order. Raises ConfigError naming the file and line that is none."""
    files = sorted(directory.glob("*.jsonl"))
    if not files:
        raise ConfigError(f"{directory}: no *.jsonl file")
    for path in files:
        with path.open(encoding="utf-8") as file:
            for number, line in enumerate(file, 1):
                where = f"{path}:{number}"
                yield where, _document(line, where)


def _document(line: str, where: str) -> dict[str, Any]:
    try:
        document = json.loads(line)
    except ValueError as error:
        raise ConfigError(f"{where}: no JSON ({error})") from error
    if not isinstance(document, dict):
        raise ConfigError(f"{where}: no object")
    if isinstance(document.get("text"), str) or isinstance(document.get("messages"), list):
        return document
    raise ConfigError(f"{where}: neither `text` nor `messages`")


def encode(tokenizer: Any, document: dict[str, Any], where: str) -> Example:
    """Raises ConfigError naming the place when the chat template refuses the conversation."""
    if "text" in document:
        token_ids = tokenizer(document["text"], add_special_tokens=False).input_ids
        return Example(token_ids, [1.0] * len(token_ids))
    try:
        text, spans = _assistant_spans(tokenizer, document["messages"], document.get("tools"))
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigError(f"{where}: {error}") from error
    encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
    weights = [
        1.0 if any(start <= begin < end for start, end in spans) else CONTEXT_WEIGHT
        for begin, _ in encoded.offset_mapping
    ]
    return Example(encoded.input_ids, weights)


def _assistant_spans(tokenizer: Any, messages: list[Any], tools: Any) -> tuple[str, list[tuple[int, int]]]:
    """The whole text, and where in it the assistant speaks, the end-of-turn mark included."""

    def render(count: int, prompt: bool) -> str:
        return str(
            tokenizer.apply_chat_template(messages[:count], tools=tools, tokenize=False, add_generation_prompt=prompt)
        )

    spans = [
        (len(render(index, True)), len(render(index + 1, False).rstrip()))
        for index, message in enumerate(messages)
        if message["role"] == "assistant"
    ]
    return render(len(messages), False), spans
