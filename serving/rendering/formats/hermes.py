"""Hermes' form of calls, as Qwen 2.5 and Qwen 3 write them.

    <tool_call>
    {"name": "read_file", "arguments": {"path": "a.py"}}
    </tool_call>

Each call is a JSON object in a block of its own."""

from serving.rendering.formats.calls import ParsedCall, Schemas, call_of_object, parsed_json
from serving.rendering.formats.grammar import CallForm
from serving.rendering.formats.parser import BlockFormat, CallBlock


def _read(text: str, tools: Schemas) -> list[ParsedCall]:
    return [call_of_object(parsed_json(text), "arguments")]


HERMES = BlockFormat((CallBlock("<tool_call>", "</tool_call>", _read),))
HERMES_CALLS = (
    ("", CallForm('<tool_call>\n{"name": "', '", "arguments": ', "}\n</tool_call>", between="\n", mark="<tool_call>")),
)
