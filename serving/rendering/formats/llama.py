"""The form of calls of Llama 3.1 and later: an answer that is nothing but JSON objects, with `;` between them.

    {"name": "read_file", "parameters": {"path": "a.py"}}

`<|python_tag|>` may stand before it. An answer that begins with a brace is held back to its end."""

import json
from dataclasses import replace
from typing import Any

from serving.rendering.formats.calls import NoCall, ParsedCall, Schemas, call_of_object
from serving.rendering.formats.grammar import CallForm
from serving.rendering.formats.parser import BlockFormat, CallBlock

_TAG = "<|python_tag|>"
_decode = json.JSONDecoder().raw_decode


def _read(text: str, tools: Schemas) -> list[ParsedCall]:
    whole, text = len(text), text.removeprefix(_TAG).lstrip()
    before = whole - len(text)
    try:
        found = [(call_of_object(value, "parameters", "arguments"), end) for value, end in _values(text.rstrip())]
        return [replace(call, end=before + end) for call, end in found]
    except NoCall as error:
        raise NoCall(str(error), begun='"name"' in text and '"parameters"' in text) from error


def _values(text: str) -> list[tuple[Any, int]]:
    """Return the values, and where each ends. Raises NoCall."""
    values, place = [], 0
    while place < len(text):
        try:
            value, place = _decode(text, place)
        except (ValueError, RecursionError) as error:
            raise NoCall(str(error)) from error
        values.append((value, place))
        while text[place : place + 1] in ("\n", " ", ";"):
            place += 1
    return values


LLAMA = BlockFormat((CallBlock(_TAG, None, _read, only_first=True), CallBlock("{", None, _read, only_first=True)))
LLAMA_CALLS = (("", CallForm('{"name": "', '", "parameters": ', "}", between="; ")),)
