"""Mistral's forms of calls.

    [TOOL_CALLS] [{"name": "read_file", "arguments": {"path": "a.py"}}]
    [TOOL_CALLS]read_file[ARGS]{"path": "a.py"}[TOOL_CALLS]read_file[ARGS]{"path": "b.py"}

Earlier models write one JSON list, later ones a name and JSON for each call."""

from serving.rendering.formats.calls import NoCall, ParsedCall, Schemas, call_of_object, checked_call, parsed_json
from serving.rendering.formats.grammar import CallForm
from serving.rendering.formats.parser import BlockFormat, CallBlock, Thinking

_ID, _ARGUMENTS = "[CALL_ID]", "[ARGS]"
MISTRAL_THINKING = Thinking("[THINK]", "[/THINK]")


def _read(text: str, tools: Schemas) -> list[ParsedCall]:
    text = text.strip()
    if text.startswith("["):
        calls = [call_of_object(value, "arguments") for value in parsed_json(text)]
        if not calls:
            raise NoCall("no calls are in the list")
        return calls
    name, mark, arguments = text.partition(_ARGUMENTS)
    if not mark:
        name, brace, rest = text.partition("{")
        arguments = brace + rest
    return [checked_call(name.partition(_ID)[0].strip() or None, parsed_json(arguments))]


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
