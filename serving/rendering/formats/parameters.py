"""Grammars of arguments that are written one by one, each between marks, with text that is not quoted.

The values' types are those of the tool's schema, as `formats.calls.typed` reads them: text where it may be text, else
JSON."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from core.errors import InvalidRequest
from core.grammars.wanted import WantedTool

_SAYS_NOTHING: Final = frozenset(("title", "description", "default", "examples", "$comment", "$schema", "deprecated"))
_OF_OBJECTS: Final = _SAYS_NOTHING | {"type", "properties", "required", "additionalProperties", "$defs", "definitions"}
_OF_TEXT: Final = _SAYS_NOTHING | {"type", "enum", "const"}
_KEY: Final = "/[a-zA-Z_][a-zA-Z0-9_.-]{0,63}/"


@dataclass(frozen=True)
class ParameterForm:
    """The text before a parameter's name, between name and value, and behind the value; `marks` stand in no value."""

    before_key: str
    before_value: str
    after_value: str
    marks: tuple[str, ...]


@dataclass(frozen=True)
class Parameters:
    """The writer of one answer's rules; `text` and `json` write those of a text and of a schema."""

    form: ParameterForm
    rules: dict[str, str]
    text: Callable[[str], str]
    json: Callable[[str, Mapping[str, Any]], str]
    special: Callable[[str], list[int | str]]

    def arguments(self, name: str, tool: WantedTool) -> str:
        """Return what stands for a tool's arguments, in the order of its schema. Raises InvalidRequest."""
        for keyword in sorted(tool.schema.keys() - _OF_OBJECTS):
            raise _unwritable(tool, keyword)
        properties, required = tool.schema.get("properties"), tool.schema.get("required") or ()
        if properties is None:
            return f"({self._one(_KEY, self._free_text(name))})*"
        defs = {key: tool.schema[key] for key in ("$defs", "definitions") if key in tool.schema}
        parts = []
        for place, (key, schema) in enumerate(properties.items()):
            rule = f"{name}_{place}"
            self.rules[rule] = self._one(json.dumps(key), self._value(rule, tool, schema, defs))
            parts.append(rule if key in required else f"{rule}?")
        return " ".join(parts)

    def _one(self, key: str, value: str) -> str:
        return f"{self.text(self.form.before_key)} {key} {self.text(self.form.before_value)} {value}"

    def _value(self, rule: str, tool: WantedTool, schema: Any, defs: Mapping[str, Any]) -> str:
        """Return what stands for a value and the mark behind it."""
        if not (isinstance(schema, Mapping) and "string" in _kinds(schema)):
            return (
                f"{self.json(f'{rule}_value', {**schema, **defs} if isinstance(schema, Mapping) else {})} {self._end()}"
            )
        for keyword in sorted(schema.keys() - _OF_TEXT):
            raise _unwritable(tool, keyword)
        values = [schema["const"]] if "const" in schema else schema.get("enum")
        if values is None:
            return self._free_text(rule)
        return f"({' | '.join(json.dumps(_plain(value)) for value in values)}) {self._end()}"

    def _free_text(self, rule: str) -> str:
        marked = " | ".join(json.dumps(mark) for mark in self.form.marks)
        self.rules["VALUE"] = f"/(?s:.*)/ & ~(/(?s:.*)/ ({marked}) /(?s:.*)/)"
        first = self.special(self.form.after_value)[0]
        if isinstance(first, int):
            self.rules["SOME_VALUE"] = "VALUE & /(?s:.+)/"
            return f"SOME_VALUE? {self._end()}"
        self.rules[f"{rule}_text[suffix={json.dumps(first)}]"] = "VALUE"
        rest = self.form.after_value.removeprefix(first)
        return f"{rule}_text {self.text(rest)}".strip()

    def _end(self) -> str:
        return self.text(self.form.after_value)


def _kinds(schema: Mapping[str, Any]) -> list[Any]:
    kinds = schema.get("type")
    return kinds if isinstance(kinds, list) else [kinds]


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _unwritable(tool: WantedTool, keyword: str) -> InvalidRequest:
    return InvalidRequest(
        f"{tool.field}: {keyword} cannot be followed where text is not quoted, as in the calls of this model",
        param=tool.field,
        code="invalid_grammar",
    )
