"""Calls that a model wrote, checked: clients get only what they can read."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

Schemas = Mapping[str, Mapping[str, Any]]
"""For each tool the schemas of its parameters, by their names."""


_WORDS = {"True": True, "False": False, "None": None}  # as templates that write values as Python's text show them


class NoCall(ValueError):
    """Raised for text that looks like a call and is none. `begun`: the model meant one, so that it counts as broken."""

    def __init__(self, what: str, *, begun: bool = True) -> None:
        super().__init__(what)
        self.begun = begun


@dataclass(frozen=True)
class ParsedCall:
    name: str
    arguments: str
    """A JSON object."""
    end: int | None = None
    """Where it ends in the text that it was read from, if another call follows there."""


def checked_call(name: object, arguments: object) -> ParsedCall:
    """Return the call. Raises NoCall for a name that is no text, or arguments that are no object of JSON."""
    if not isinstance(name, str) or not isinstance(arguments, dict):
        raise NoCall("a call has a name and an object of arguments")
    try:
        written = json.dumps(arguments, ensure_ascii=False, allow_nan=False)
        (name + written).encode()  # half a surrogate pair is no character
    except (ValueError, RecursionError) as error:
        raise NoCall(str(error)) from error
    return ParsedCall(name, written)


def call_of_object(value: object, *keys: str) -> ParsedCall:
    """Return the call that an object describes; its arguments stand under the first of `keys` that it has."""
    if not isinstance(value, dict):
        raise NoCall("a call is an object")
    return checked_call(value.get("name"), next((value[key] for key in keys if key in value), None))


def parsed_json(text: str) -> Any:
    """Return the value. Raises NoCall."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise NoCall(str(error)) from error


def schemas_of(tools: Sequence[Mapping[str, Any]]) -> Schemas:
    found = {}
    for tool in tools:
        parameters = tool["function"].get("parameters") or {}
        found[tool["function"]["name"]] = parameters.get("properties") or {}
    return found


def typed(text: str, schema: object) -> Any:
    """Return the value of an argument that a model wrote without quotes, as its schema has it.

    Text for a parameter that may be text; otherwise JSON, or Python's word for it, and text where it is neither."""
    kinds = schema.get("type") if isinstance(schema, Mapping) else None
    kinds = kinds if isinstance(kinds, list) else [kinds]
    if "string" in kinds:
        return None if text in ("null", "None") and "null" in kinds else text
    if text in _WORDS:
        return _WORDS[text]
    try:
        return json.loads(text, parse_constant=_no_number)
    except (ValueError, RecursionError):
        return text


def _no_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")
