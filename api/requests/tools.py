"""Tool definitions: the structural checks that OpenAI's service makes, without a JSON Schema library."""

import re
from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from api.requests.ignored import Ignored, take_ignored
from core.errors import InvalidRequest

MAX_TOOLS = 128
_MAX_DEPTH = 32
_NAME = re.compile(r"[a-zA-Z0-9_-]{1,128}")
_TYPES = frozenset(("object", "array", "string", "number", "integer", "boolean", "null"))
_ONE_SCHEMA = ("items", "additionalProperties", "not", "if", "then", "else", "contains", "propertyNames")
_MANY_SCHEMAS = ("anyOf", "oneOf", "allOf", "prefixItems")
_NAMED_SCHEMAS = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
_INT64 = 1 << 63


class FunctionDefinition(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    description: str | UnsetType | None = UNSET
    parameters: dict[str, Any] | UnsetType | None = UNSET
    strict: bool | UnsetType | None = UNSET
    cache_control: Ignored = UNSET


class Tool(msgspec.Struct, forbid_unknown_fields=True, tag_field="type", tag="function"):
    function: FunctionDefinition
    cache_control: Ignored = UNSET


def ignored_in_tools(tools: Sequence[Tool]) -> list[str]:
    """Take what is ignored out of tools, and return its names."""
    found: list[str] = []
    for tool in tools:
        found += take_ignored(tool, "tools[].") + take_ignored(tool.function, "tools[].function.")
    return found


def check_count(tools: Sequence[object]) -> None:
    """Raise InvalidRequest for too many tools, whatever they are."""
    if len(tools) > MAX_TOOLS:
        raise _invalid("tools", f"more than {MAX_TOOLS} tools")


def check_tools(tools: Sequence[Tool]) -> None:
    """Check the tools' names and parameters. Raises InvalidRequest naming the field."""
    check_count(tools)
    names: set[str] = set()
    for index, tool in enumerate(tools):
        place = f"tools[{index}].function"
        name = tool.function.name
        if not _NAME.fullmatch(name):
            raise _invalid(f"{place}.name", "1 to 128 of the characters a-z, A-Z, 0-9, _ and -")
        if name in names:
            raise _invalid(f"{place}.name", f"two tools are called {name}")
        names.add(name)
        if isinstance(tool.function.parameters, dict):
            _check_parameters(tool.function.parameters, f"{place}.parameters")


def _check_parameters(schema: dict[str, Any], place: str) -> None:
    if schema and schema.get("type", "object") != "object":
        raise _invalid(f"{place}.type", "the parameters of a tool are an object")
    _check_values(schema, place, 0)
    _check_schema(schema, place)


def check_schema(schema: dict[str, Any], place: str) -> None:
    """Check a schema that is not a tool's. Raises InvalidRequest naming the place in it."""
    try:
        _check_values(schema, place, 0)
        _check_schema(schema, place)
    except InvalidRequest as error:
        raise InvalidRequest(error.message, param=error.param) from None


def _check_schema(schema: object, place: str) -> None:
    """Check the keywords of JSON Schema 2020-12 that tools use; others pass."""
    if isinstance(schema, bool):
        return
    if not isinstance(schema, dict):
        raise _invalid(place, "a schema is an object or a boolean")
    _check_type(schema, place)
    if "enum" in schema and not (isinstance(schema["enum"], list) and schema["enum"]):
        raise _invalid(f"{place}.enum", "a list of at least one value")
    required = schema.get("required", [])
    if not (isinstance(required, list) and all(isinstance(name, str) for name in required)):
        raise _invalid(f"{place}.required", "a list of property names")
    for keyword in _ONE_SCHEMA:
        if keyword in schema:
            _check_schema(schema[keyword], f"{place}.{keyword}")
    for keyword in _MANY_SCHEMAS:
        if keyword in schema:
            if not (isinstance(schema[keyword], list) and schema[keyword]):
                raise _invalid(f"{place}.{keyword}", "a list of at least one schema")
            for index, part in enumerate(schema[keyword]):
                _check_schema(part, f"{place}.{keyword}[{index}]")
    for keyword in _NAMED_SCHEMAS:
        if keyword in schema:
            if not isinstance(schema[keyword], dict):
                raise _invalid(f"{place}.{keyword}", "an object of schemas")
            for name, part in schema[keyword].items():
                _check_schema(part, f"{place}.{keyword}.{name}")


def _check_type(schema: dict[str, Any], place: str) -> None:
    if "type" not in schema:
        return
    types = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
    if not types or not all(isinstance(name, str) and name in _TYPES for name in types):
        raise _invalid(f"{place}.type", f"one or more of {', '.join(sorted(_TYPES))}")


def _check_values(value: object, place: str, depth: int) -> None:
    """Check that the log can hold the value: no deeper than anybody nests, no integer beyond 64 bits."""
    if depth > _MAX_DEPTH:
        raise _invalid(place, f"nested more than {_MAX_DEPTH} deep")
    if isinstance(value, dict):
        for name, part in value.items():
            _check_values(part, f"{place}.{name}", depth + 1)
    elif isinstance(value, list):
        for index, part in enumerate(value):
            _check_values(part, f"{place}[{index}]", depth + 1)
    elif isinstance(value, int) and not -_INT64 <= value < _INT64:
        raise _invalid(place, "an integer beyond 64 bits")


def _invalid(param: str, what: str) -> InvalidRequest:
    return InvalidRequest(f"{param}: {what}", param=param, code="invalid_tool")
