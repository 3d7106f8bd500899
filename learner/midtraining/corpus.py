"""Encoding a document of a corpus as token ids.

A document is {"text": ...}, {"messages": [...], "tools": [...]}, or {"token_ids": [...], "spans": [[start, end], ...]},
tokens as a model sampled them. In a conversation what the assistant says counts whole, the rest a little: it is context
rather than something to imitate. In given tokens those within the spans count whole, the rest not at all."""

import json
from array import array
from collections.abc import Iterator
from typing import Any

from jinja2 import TemplateError

from core.errors import ConfigError
from core.text.edits import text_of_call
from learner.sequences.packing import Example

CONTEXT_WEIGHT = 0.1


def encode(tokenizer: Any, document: dict[str, Any], where: str) -> Example:
    """Encode a document.

    Raises ConfigError, naming the place, when the chat template refuses the conversation, or when given tokens are not
    of the tokenizer's vocabulary."""
    if "text" in document:
        token_ids = tokenizer(document["text"], add_special_tokens=False, verbose=False).input_ids
        return Example(token_ids, [1.0] * len(token_ids))
    if "messages" not in document:
        return _given(document, len(tokenizer), where)
    try:
        text, spans = _assistant_spans(tokenizer, document["messages"], document.get("tools"))
    except (KeyError, TypeError, ValueError, TemplateError) as error:
        raise ConfigError(f"{where}: {error}") from error
    encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
    weights = [
        1.0 if any(start <= begin < end for start, end in spans) else CONTEXT_WEIGHT
        for begin, _ in encoded.offset_mapping
    ]
    return Example(encoded.input_ids, weights)


def windows(example: Example, row_tokens: int, source: int = 0) -> list[Example]:
    """Cut the example into windows that fit a row, stored compactly since many of them wait.

    Each begins with the last token of the one before, so that every token but the very first is predicted once."""
    starts = range(0, max(1, len(example.token_ids) - 1), row_tokens - 1)
    ids, weights = array("i", example.token_ids), example.weights
    return [Example(ids[at : at + row_tokens], weights[at : at + row_tokens], source) for at in starts]


def texts_of(tokenizer: Any, document: dict[str, Any]) -> Iterator[str]:
    """Yield the texts of a document that `encode` takes: each message's, what each call writes, or the whole."""
    if "text" in document:
        yield document["text"]
    elif "messages" not in document:
        yield tokenizer.decode(document["token_ids"])
    for message in document.get("messages", ()):
        yield from _texts_in(message)


def _texts_in(message: Any) -> Iterator[str]:
    """Yield what a message says and what its calls write; nothing of one that has not the form of a message."""
    match message:
        case {"content": str(text)}:
            yield text
        case {"content": list(parts)}:
            yield "\n".join(
                part["text"] for part in parts if isinstance(part, dict) and isinstance(part.get("text"), str)
            )
    for call in message.get("tool_calls") or () if isinstance(message, dict) else ():
        match call:
            case {"function": {"arguments": arguments}}:
                written = arguments if isinstance(arguments, str) else json.dumps(arguments)
                yield text_of_call(written) or written


def _given(document: dict[str, Any], vocabulary: int, where: str) -> Example:
    ids, spans = document["token_ids"], document.get("spans")
    if not all(type(token) is int and 0 <= token < vocabulary for token in ids):
        raise ConfigError(f"{where}: token_ids: want integers from 0 to {vocabulary - 1}")
    weights = [0.0] * len(ids)
    for span in spans if isinstance(spans, list) else [None]:
        match span:
            case [int(start), int(end)] if 0 <= start < end <= len(ids):
                weights[start:end] = [1.0] * (end - start)
            case _:
                raise ConfigError(f"{where}: spans: want pairs [start, end] within {len(ids)} tokens, got {span}")
    return Example(ids, weights)


def _assistant_spans(tokenizer: Any, messages: list[Any], tools: Any) -> tuple[str, list[tuple[int, int]]]:
    """Return the whole text, and the spans in which the assistant speaks, with the end-of-turn marks."""

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
