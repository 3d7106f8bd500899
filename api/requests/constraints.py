"""What a chat's `response_format`, `tool_choice` and strict tools want of its answer, checked field by field."""

from collections.abc import Mapping
from typing import Any, Final

from msgspec import UNSET

from api.requests.bodies import ChatBody
from api.requests.ignored import take_unknown
from api.requests.tools import Tool, check_schema
from core.errors import InvalidRequest
from core.grammars.wanted import ANY_OBJECT, WantedAnswer, WantedTool

_FORMATS: Final = "text, json_object or json_schema"
_OF_FORMAT: Final = {"text": {"type"}, "json_object": {"type"}, "json_schema": {"type", "json_schema"}}
STRICT: Final = "tools[].function.strict"
_OF_SCHEMA: Final = {"name", "description", "schema", "strict"}
_SCHEMA: Final = "response_format.json_schema.schema"


def ignored_in_wanted(body: ChatBody) -> list[str]:
    """Take what nobody knows out of the fields that say what is wanted, and return its names."""
    found: list[str] = []
    wanted, choice = body.response_format, body.tool_choice
    if wanted is not None:
        found += take_unknown(wanted, _OF_FORMAT.get(str(wanted.get("type")), wanted), "response_format.")
        if isinstance(schema := wanted.get("json_schema"), dict):
            found += take_unknown(schema, _OF_SCHEMA, "response_format.json_schema.")
    if isinstance(choice, dict) and isinstance(function := choice.get("function"), dict):
        found += take_unknown(choice, {"type", "function"}, "tool_choice.")
        found += take_unknown(function, {"name"}, "tool_choice.function.")
    return found


def check_wanted(body: ChatBody) -> None:
    """Check the fields. Raises InvalidRequest naming the one at fault."""
    _schema(body)
    _chosen(body)


def wanted_of(body: ChatBody, calls_refused: str | None) -> tuple[WantedAnswer | None, list[str]]:
    """Return what is wanted of the answer, None for one that is free, and the names of fields that are ignored.

    `calls_refused` says why the model's calls have no grammar; None: they have one. Without one, a request that demands
    a call is refused, and `strict` is ignored. `strict` is removed from the tools in both cases: neither the prompt nor
    the stored turn has it. Raises InvalidRequest naming the field."""
    wanted = _wanted_answer(body)
    is_strict = any(tool.function.strict is True for tool in body.tools or ())
    for tool in body.tools or ():
        tool.function.strict = UNSET
    if wanted is None or not wanted.tools or calls_refused is None:
        return wanted, []
    if wanted.must_call or wanted.schema is not None:
        raise _refused("tool_choice" if wanted.must_call else "tools", calls_refused)
    return None, [STRICT] if is_strict else []


def _wanted_answer(body: ChatBody) -> WantedAnswer | None:
    """Content follows its schema whether `strict` is said or not; the calls of a tool only where it is strict."""
    schema, chosen = _schema(body), _chosen(body)
    tools = () if body.tool_choice == "none" else tuple(body.tools or ())
    wanted = tuple(
        _tool(tool, f"tools[{index}].function.parameters")
        for index, tool in enumerate(tools)
        if chosen is None or tool.function.name == chosen
    )
    must_call = chosen is not None or body.tool_choice == "required"
    is_strict = any(tool.function.strict is True for tool in tools)
    if schema is None and not must_call and not is_strict:
        return None
    field = "tool_choice" if must_call else "tools" if schema is None else _field_of(body)
    many = chosen is None and body.parallel_tool_calls is not False
    return WantedAnswer(schema=schema, tools=wanted, must_call=must_call, many_calls=many, field=field)


def _tool(tool: Tool, field: str) -> WantedTool:
    parameters = tool.function.parameters
    schema: Mapping[str, Any] = parameters if isinstance(parameters, dict) and parameters else ANY_OBJECT
    if tool.function.strict is not True:
        schema = ANY_OBJECT
    return WantedTool(name=tool.function.name, schema=schema, field=field)


def _chosen(body: ChatBody) -> str | None:
    """Return the name of the function that must be called, if one must."""
    choice = body.tool_choice
    if choice in (None, "none", "auto"):
        return None
    if isinstance(choice, str) and choice != "required":
        raise _refused("tool_choice", 'use none, auto, required, or {"type": "function", "function": {"name": …}}')
    names = [tool.function.name for tool in body.tools or ()]
    if not names:
        raise InvalidRequest("tool_choice: there are no tools", param="tool_choice")
    if isinstance(choice, str):
        return None
    assert choice is not None
    function = choice.get("function")
    if choice.get("type") != "function" or choice.keys() != {"type", "function"} or not isinstance(function, dict):
        raise _refused("tool_choice", 'a tool is named as {"type": "function", "function": {"name": …}}')
    if function.keys() != {"name"} or function["name"] not in names:
        raise InvalidRequest("tool_choice.function.name: no tool is called so", param="tool_choice.function.name")
    return str(function["name"])


def _schema(body: ChatBody) -> Mapping[str, Any] | None:
    """Return the schema of the content; None for text."""
    wanted = body.response_format
    if wanted is None:
        return None
    kind = wanted.get("type")
    if not isinstance(kind, str) or kind not in _OF_FORMAT:
        raise _refused("response_format.type", f"must be {_FORMATS}")
    if kind == "text":
        return None
    return ANY_OBJECT if kind == "json_object" else _named_schema(wanted.get("json_schema"))


def _named_schema(named: object) -> Mapping[str, Any]:
    place = "response_format.json_schema"
    if not isinstance(named, dict):
        raise InvalidRequest(f"{place}: an object with a name and a schema", param=place)
    if not isinstance(named.get("name"), str):
        raise InvalidRequest(f"{place}.name: a name is needed", param=f"{place}.name")
    if named.get("strict") not in (None, True, False):
        raise InvalidRequest(f"{place}.strict: true or false", param=f"{place}.strict")
    schema = named.get("schema")
    if not isinstance(schema, dict):
        raise InvalidRequest(f"{_SCHEMA}: an object is needed", param=_SCHEMA)
    check_schema(schema, _SCHEMA)
    return schema


def _field_of(body: ChatBody) -> str:
    is_named = body.response_format is not None and body.response_format["type"] == "json_schema"
    return _SCHEMA if is_named else "response_format"


def _refused(field: str, what: str) -> InvalidRequest:
    return InvalidRequest(f"{field}: {what}", param=field, code="unsupported")
