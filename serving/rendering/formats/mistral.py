"""Mistral's forms of calls.

    [TOOL_CALLS] [{"name": "read_file", "arguments": {"path": "a.py"}}]
    [TOOL_CALLS]read_file[ARGS]{"path": "a.py"}[TOOL_CALLS]read_file[ARGS]{"path": "b.py"}

Earlier models write one JSON list, later ones a name and JSON for each call."""

import json
from dataclasses import replace

from serving.rendering.formats.calls import NoCall, ParsedCall, Schemas, call_of_object, checked_call, parsed_json
from serving.rendering.formats.grammar import CallForm
from serving.rendering.formats.parser import BlockFormat, CallBlock, Thinking

_ID, _ARGUMENTS = "[CALL_ID]", "[ARGS]"
_decode = json.JSONDecoder().raw_decode
MISTRAL_THINKING = Thinking("[THINK]", "[/THINK]")


def _read(text: str, tools: Schemas) -> list[ParsedCall]:
    before = len(text) - len(text.lstrip())
    text = text.strip()
    if text.startswith("["):
        calls = [call_of_object(value, "arguments") for value in parsed_json(text)]
        if not calls:
            raise NoCall("no calls are in the list")
        return [replace(call, end=before + end) for call, end in zip(calls, _ends(text), strict=True)]
    name, mark, arguments = text.partition(_ARGUMENTS)
    if not mark:
        name, brace, rest = text.partition("{")
        arguments = brace + rest
    return [checked_call(name.partition(_ID)[0].strip() or None, parsed_json(arguments))]


def _ends(text: str) -> list[int]:
    """Return where each object in a list of JSON ends."""
    ends: list[int] = []
    place = text.find("{")
    while place >= 0:
        ends.append(_decode(text, place)[1])
        place = text.find("{", ends[-1])
    return ends


MISTRAL = BlockFormat((CallBlock("[TOOL_CALLS]", None, _read),))
MISTRAL_CALLS = (
    (_ARGUMENTS, CallForm("[TOOL_CALLS]", _ARGUMENTS, "", mark="[TOOL_CALLS]")),
    (
        "",
        CallForm(
            '{"name": "', '", "arguments": ', "}", between=", ", begin="[TOOL_CALLS] [", end="]", mark="[TOOL_CALLS]"
        ),
    ),
)
