"""The bounded schema reader agrees with the reference implementation and never takes long."""

import contextlib
import json
from typing import Any

import pytest
from counted_steps import steps_of
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from core.text.json_schema import NoSchema, Schema, StepBudget
from core.text.json_schema.values import key_of

NAMES = st.sampled_from(["a", "b", "ab", "x-1"])
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 3),
    st.sampled_from([0.0, 0.5, 1.0, 1e300]),
    st.sampled_from(["", "a", "ab"]),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=6,
)
COUNTS = st.integers(0, 3)
TYPES = st.sampled_from(["object", "array", "string", "number", "integer", "boolean", "null"])
PATTERNS = st.sampled_from(["^a", "b$", "[ab]{2}", "-"])


def schemas(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    many = st.lists(inner, min_size=1, max_size=2)
    named = st.dictionaries(NAMES, inner, max_size=2)
    ones = ("additionalProperties", "contains", "else", "if", "items", "not", "propertyNames", "then")
    counts = ("Items", "Length", "Properties", "Contains")
    keywords: dict[str, st.SearchStrategy[Any]] = {
        "type": TYPES | st.lists(TYPES, min_size=1, max_size=2, unique=True),
        "enum": st.lists(VALUES, min_size=1, max_size=3),
        "const": VALUES,
        "multipleOf": st.sampled_from([1, 2, 0.5]),
        "required": st.lists(NAMES, max_size=2, unique=True),
        "dependentRequired": st.dictionaries(NAMES, st.lists(NAMES, max_size=2, unique=True), max_size=2),
        "uniqueItems": st.booleans(),
        "pattern": PATTERNS,
        "patternProperties": st.dictionaries(PATTERNS, inner, max_size=2),
        "$ref": st.sampled_from(["#/$defs/a", "#/$defs/b", "#anchored"]),
        **dict.fromkeys(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"), st.integers(-2, 2)),
        **dict.fromkeys([f"{end}{what}" for end in ("min", "max") for what in counts], COUNTS),
        **dict.fromkeys(("allOf", "anyOf", "oneOf", "prefixItems"), many),
        **dict.fromkeys(("properties", "dependentSchemas"), named),
        **dict.fromkeys(ones, inner),
    }
    return st.lists(st.sampled_from(sorted(keywords)), max_size=3, unique=True).flatmap(
        lambda names: st.fixed_dictionaries({name: keywords[name] for name in names})
    )


SCHEMAS = st.recursive(st.booleans(), schemas, max_leaves=5)
SIMPLE = st.fixed_dictionaries({"type": TYPES}) | st.booleans()


@settings(max_examples=400, deadline=None)
@given(schema=SCHEMAS, simple=st.tuples(SIMPLE, SIMPLE), value=VALUES)
def test_it_is_what_the_reference_admits(schema: Any, simple: tuple[Any, Any], value: Any) -> None:
    anchored = {"$anchor": "anchored", "type": "object"}
    root = {"$defs": {"a": simple[0], "b": simple[1], "c": anchored}, "allOf": [schema]}
    assert Schema(root).admits(value) is Draft202012Validator(root).is_valid(value)


@pytest.mark.parametrize(
    ("schema", "value", "admitted"),
    [
        ({"$ref": "http://localhost:9/x", "type": "object"}, {}, None),
        ({"$ref": "http://localhost:9/x", "type": "object"}, [], False),
        ({"not": {"$ref": "#/nowhere"}}, 1, None),
        ({"anyOf": [{"$ref": "#/nowhere"}, {"type": "integer"}]}, 1, True),
        ({"anyOf": [{"$ref": "#/nowhere"}, {"type": "string"}]}, 1, None),
        ({"oneOf": [{"$ref": "#/nowhere"}, {"type": "integer"}, {"minimum": 0}]}, 1, False),
        ({"if": {"$ref": "#/nowhere"}, "then": False, "else": False}, 1, False),
        ({"if": {"$ref": "#/nowhere"}, "then": False}, 1, None),
        ({"pattern": "(?=a)"}, "a", None),
        ({"pattern": "(?=a)"}, 1, True),
        ({"patternProperties": {"(?=a)": False}}, {"a": 1}, None),
        ({"unevaluatedProperties": False}, {}, None),
        ({"$id": "https://a.b/c", "$ref": "https://a.b/c#/$defs/d", "$defs": {"d": {"type": "null"}}}, None, True),
        ({"$id": "https://a.b/c", "$ref": "https://a.b/c#/$defs/d", "$defs": {"d": {"type": "null"}}}, 1, False),
        ({"$ref": "#/$defs/a~1b/%25", "$defs": {"a/b": {"%": {"type": "null"}}}}, 1, False),
        ({"$defs": {"d": {"$id": "urn:d", "$ref": "#/type"}}, "$ref": "#/$defs/d"}, 1, None),
        ({"$ref": "#"}, {}, None),
        ({"multipleOf": 0.1}, 0.3, True),
        ({"multipleOf": 1e-308}, 1e308, True),
        ({"enum": [["number", "1"]]}, 1, False),
        ({"format": "regex"}, "(", True),
    ],
)
def test_what_nobody_can_tell_says_neither(schema: Any, value: Any, admitted: bool | None) -> None:
    assert Schema(schema).admits(value) is admitted


@pytest.mark.parametrize(
    ("schema", "place"),
    [
        ({"type": "thing"}, r"\$\.type: .*'thing'"),
        ({"properties": {"a": 1}}, r"\$\.properties\.a"),
        ({"anyOf": []}, r"\$\.anyOf"),
        ({"$ref": 1}, r"\$\.\$ref"),
        ({"multipleOf": 0}, "multipleOf"),
        ({"minItems": -1}, "minItems"),
        ({"$defs": {"a": {"required": [1]}}}, "required"),
        ({"$ref": "#/x", "x": [1]}, r"\$\.\$ref"),
        ([], "an object or a boolean"),
    ],
)
def test_what_is_no_schema_is_said_with_its_place(schema: Any, place: str) -> None:
    with pytest.raises(NoSchema, match=place):
        Schema(schema)


def nested(depth: int, key: str = "items") -> dict[str, Any]:
    return json.loads(f'{{"{key}": ' * depth + "{}" + "}" * depth)


@pytest.mark.parametrize(
    "schema",
    [
        nested(150),
        nested(900, "const"),
        {"properties": {str(number): {} for number in range(5000)}},
        {"properties": {"x" * 1_000_000: {"anyOf": [{} for _ in range(5000)]}}},
        {"enum": [number * (2**61 - 1) for number in range(5000)]},
        {"$ref": "#" + "/a" * 10_000},
        {"pattern": "(a*)*" * 100_000},
        {"pattern": "((a?){9}){99}"},
    ],
)
def test_a_large_schema_is_read_or_refused_soon(schema: Any) -> None:
    def read() -> None:
        with contextlib.suppress(NoSchema):
            Schema(schema).admits("a" * 1000)

    assert steps_of(read) < 200_000, "with its size, not with the square of it"


@pytest.mark.parametrize(
    ("schema", "value", "admitted"),
    [
        ({"$defs": {"t": {"anyOf": [{"$ref": "#/$defs/t"}] * 3}}, "$ref": "#/$defs/t"}, 1, None),
        ({"items": {"oneOf": [{"type": "string"}] * 50}}, ["a"] * 10_000, False),
        ({"uniqueItems": True}, [number * (2**61 - 1) for number in range(50_000)], None),
        ({"items": {"const": ["a"] * 1000}}, [["a"] * 1000] * 1000, None),
        ({"pattern": "(a|b)*a(a|b){12}c"}, "ab" * 500_000, None),
        ({"additionalProperties": {"$ref": "#"}}, {"a": nested(90)}, None),
    ],
)
def test_a_value_is_judged_within_a_budget(schema: Any, value: Any, admitted: bool | None) -> None:
    assert Schema(schema).admits(value) is admitted
    assert steps_of(lambda: Schema(schema).admits(value)) < 200_000, "ten for each step of its budget"


def test_numbers_that_were_chosen_to_have_one_hash_are_told_apart_at_once() -> None:
    numbers = [number * (2**61 - 1) for number in range(1000)]
    assert len(set(map(hash, numbers))) == 1
    assert len({hash(key_of(number)) for number in numbers}) == len(numbers)


def test_a_budget_is_spent_by_work_and_shared() -> None:
    schema, budget = Schema({"items": {"type": "integer"}}), StepBudget(300)
    assert schema.admits([1] * 100, budget) is True
    assert schema.admits([1] * 100, budget) is None
    assert schema.admits([1], budget) is None
