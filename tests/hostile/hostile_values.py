"""JSON text that a client can put in place of a number, a text or a schema; no encoder makes some of it."""

import json
from typing import Any

DEEP = "[" * 20_000 + "]" * 20_000
LONG_NUMBER = "9" * 5_000

NUMBERS = {
    "next to nothing": "1e-40",
    "no normal number": "1e-320",
    "less than a hundredth": "0.009",
    "minus zero": "-0.0",
    "negative": "-1",
    "huge": "1e308",
    "past all floats": "1e999",
    "beyond 64 bits": str(1 << 70),
    "5,000 digits": LONG_NUMBER,
    "NaN": "NaN",
    "infinite": "Infinity",
    "a text": '"1"',
    "a boolean": "true",
    "a list": "[1]",
    "an object": '{"a": 1}',
}

VALUES = {
    **NUMBERS,
    "nothing": "null",
    "an empty text": '""',
    "a zero byte": '"\\u0000"',
    "half a character": '"\\ud800"',
    "a byte that is no UTF-8": b'"\xff"',
    "a long text": json.dumps("a" * 100_000),
    "a long word of escapes": '"' + "\\u00e9" * 20_000 + '"',
    "deep": DEEP,
    "a wide list": json.dumps([0] * 20_000),
    "not closed": "[",
}

_EVIL = "^(a+)+$"
_VICTIM = "a" * 40 + "!"


def _object(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties}


def _towers(depth: int) -> dict[str, Any]:
    """Return a schema that takes a naive reader twice as long with each level."""
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(depth):
        schema = {"anyOf": [schema, schema]}
    return schema


_PATTERNS = {f"p{count}": {"type": "string", "pattern": f"a.{{{count}}}b"} for count in range(2, 32)}
_OLD = "http://json-schema.org/draft-07/schema#"
SCHEMAS: dict[str, dict[str, Any]] = {
    "a pattern that backtracks": _object(a={"type": "string", "pattern": _EVIL}),
    "the same within a sub-schema of another draft": _object(a={"$schema": _OLD, "pattern": _EVIL}),
    "the same by its names": {"$schema": _OLD, "patternProperties": {_EVIL: {"type": "string"}}},
    "the same behind a reference": {
        "$defs": {"x": {"$schema": _OLD, "pattern": _EVIL}},
        **_object(a={"$ref": "#/$defs/x"}),
    },
    "a pattern that is none": _object(a={"pattern": "("}),
    "a reference beside siblings": _object(a={"$ref": "#/definitions/x", "type": "string"}),
    "a reference to nowhere": _object(a={"$ref": "#/nowhere"}),
    "a reference to another machine": _object(a={"$ref": "http://127.0.0.1:9/schema.json"}),
    "a reference to a file": _object(a={"$ref": "file:///etc/passwd"}),
    "a reference to itself": {"$ref": "#"},
    "references in a ring": {"$defs": {"x": {"$ref": "#/$defs/y"}, "y": {"$ref": "#/$defs/x"}}, "$ref": "#/$defs/x"},
    "a reference that is a number": _object(a={"$ref": 7}),
    "a dynamic reference": {"$dynamicRef": "#x", "$dynamicAnchor": "x"},
    "an id that is no address": {"$id": "::::", **_object(a={"$ref": "x"})},
    "a draft that nobody has": {"$schema": "urn:unknown", **_object(a={"type": "string"})},
    "no type": {"type": "nonsense"},
    "a type that is a number": {"type": 7},
    "a tower of choices": _object(a=_towers(12)),
    "all different": _object(a={"type": "array", "uniqueItems": True}),
    "a tiny step": _object(a={"type": "number", "multipleOf": 1e-320}),
    "a huge count": _object(a={"minLength": 10**18}),
    "required by a number": {"type": "object", "required": 3},
    "properties that are a list": {"type": "object", "properties": []},
    "a great step": _object(a={"type": "integer", "multipleOf": 99_999_989}),
    "many patterns for one text": _object(a={"allOf": list(_PATTERNS.values())}),
    "the same behind references": {
        "$defs": _PATTERNS,
        **_object(a={"allOf": [{"$ref": f"#/$defs/{name}"} for name in _PATTERNS]}),
    },
    "a wide one": _object(**{f"p{number}": {"type": "string"} for number in range(2_000)}),
}

ARGUMENTS = {
    "a victim of patterns": json.dumps({"a": _VICTIM, _VICTIM: 1}),
    "many of the same": json.dumps({"a": [{"b": [number % 2]} for number in range(2_000)]}),
    "deep": '{"a": ' + DEEP + "}",
    "a long number": '{"a": ' + LONG_NUMBER + "}",
    "NaN": '{"a": NaN}',
    "half a character": '{"a": "\\ud800"}',
    "not closed": '{"a": ',
}
"""Arguments of a call, as a model may write them."""
