"""Finds what must not be stored in an answer itself, which cannot be redacted once it is sampled.

Its tokens are what the model trains on, so they are stored exactly or not at all."""

import json
from collections.abc import Iterable
from typing import Final

from api.redaction.finder import Finder

REDACTED: Final = "redacted"
"""The reason for which such an answer never trains, and why its words are not stored."""


def must_not_rest(finder: Finder, sampled: bytes, words: Iterable[str], arguments: Iterable[str]) -> bool:
    """Return whether what was sampled holds something to redact, in its tokens, its words, or its calls as they read.

    The tokens say more than the words where a stop string ended these."""
    texts = [sampled.decode(errors="replace"), *words]
    texts += [read for each in arguments if "\\" in each and (read := _as_read(each))]
    return any(finder.find(text) for text in texts)


def _as_read(arguments: str) -> str:
    """Return the texts of a call's arguments, without the escapes of JSON, and apart from each other."""
    try:
        return "\n".join(_texts(json.loads(arguments)))
    except (ValueError, RecursionError):
        return ""


def _texts(value: object) -> Iterable[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, each in value.items():
            yield str(key)
            yield from _texts(each)
    elif isinstance(value, list):
        for each in value:
            yield from _texts(each)
