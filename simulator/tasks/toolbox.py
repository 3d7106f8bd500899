"""The tools that the IDE offers its agent, in OpenAI's form, and how calls to them are written."""

import json
from collections.abc import Sequence
from typing import Any


def _tool(name: str, description: str, **parameters: dict[str, str]) -> dict[str, Any]:
    schema = {"type": "object", "properties": parameters, "required": list(parameters)}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": schema}}


TOOLS = [
    _tool("read_file", "Show a file with line numbers.", path={"type": "string"}),
    _tool("edit_file", "Replace one line.", line={"type": "integer"}, text={"type": "string"}),
    _tool("run_tests", "Run the tests."),
    _tool("ask", "Ask the user.", question={"type": "string"}),
    _tool("done", "Say that the work is done."),
]


def tool_call(name: str, **arguments: Any) -> dict[str, Any]:
    """Return an assistant's message with one call."""
    call = {"type": "function", "id": "call_0", "function": {"name": name, "arguments": json.dumps(arguments)}}
    return {"role": "assistant", "content": "", "tool_calls": [call]}


def numbered(lines: Sequence[str]) -> str:
    """Return a file as `read_file` shows it."""
    return "\n".join(f"{number} {line}" for number, line in enumerate(lines, 1))
