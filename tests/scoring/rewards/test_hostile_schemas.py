"""Tool schemas come from clients: whatever one contains, the turns of all others are scored, and soon."""

from itertools import pairwise
from types import ModuleType
from typing import Any

import pytest
from counted_steps import steps_of

from core.events import ToolCall
from core.reward_spec import RewardSpec
from scoring.rewards.facts import content_of

SPEC = RewardSpec.model_validate(
    {
        "outcomes": {"accepted": {"type": "boolean", "weight": 1.0, "decides": True}},
        "penalties": {"malformed_call": -0.5},
    }
)
EVIL = "^(([a-z])+.)+[A-Z]([a-z])+$"
WORD = "a" * 40
DRAFT_7 = "http://json-schema.org/draft-07/schema#"


def _doubled(depth: int) -> dict[str, Any]:
    """Return a schema whose expansion doubles with each level."""
    names = [f"l{level}" for level in range(depth)]
    below = {name: {"anyOf": [{"$ref": f"#/$defs/{lower}"}] * 2} for name, lower in pairwise(names)}
    return {"$defs": below | {names[-1]: {"type": "array"}}, "$ref": "#/$defs/l0"}


HOSTILE: dict[str, Any] = {
    "a pattern": {"properties": {"text": {"pattern": EVIL}}},
    "a pattern in a dialect of its own": {"properties": {"text": {"$schema": DRAFT_7, "pattern": EVIL}}},
    "patterns of names": {"patternProperties": {EVIL: {}}},
    "patterns of names that leave out the others": {"patternProperties": {EVIL: {}}, "additionalProperties": True},
    "patterns of names, and what is left": {"patternProperties": {EVIL: {}}, "unevaluatedProperties": True},
    "names that match": {"propertyNames": {"$schema": DRAFT_7, "pattern": EVIL}},
    "a format": {"properties": {"text": {"format": "regex"}}},
    "a pattern that is none": {"properties": {"text": {"pattern": "("}}},
    "a dialect of nobody": {"properties": {"text": {"$schema": "urn:nobody"}}},
    "a reference beside others": {"properties": {"text": {"$schema": DRAFT_7, "$ref": "#/nowhere", "type": "string"}}},
    "a reference to nowhere": {"$ref": "#/$defs/nowhere", "type": "object"},
    "a reference to no address": {"$ref": "http://[", "type": "object"},
    "a reference to a file": {"properties": {"text": {"$ref": "file:///etc/passwd"}}},
    "a reference to itself": {"$ref": "#"},
    "references in a ring": {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}},
    "a dynamic reference": {"$dynamicRef": "#text", "properties": {"text": {"$dynamicAnchor": "text"}}},
    "no schema in its parts": {"properties": {"text": 3}},
    "no type": {"properties": {"text": {"type": {"of": "string"}}}},
    "an identity that is no address": {"$id": "http://[", "properties": {"text": {"$ref": "#/properties/x"}}},
    "an anchor of its own": {"$id": "urn:x", "$ref": "#text", "$defs": {"a": {"$id": "urn:y", "$anchor": "text"}}},
    "alternatives without end": _doubled(30),
    "a number without end": {"properties": {"number": {"multipleOf": 1e-308}}},
}
ARGUMENTS = '{"text": "' + WORD + '!", "' + WORD + '!": 1, "number": 1e308, "pair": [[1, 2], [1, 2]]}'


def tool(parameters: dict[str, Any]) -> tuple[dict[str, Any], ...]:
    return ({"type": "function", "function": {"name": "edit", "parameters": parameters}},)


def components(lab: ModuleType, events: Any, parameters: dict[str, Any], *arguments: str) -> dict[str, float]:
    calls = tuple(
        ToolCall(id=str(place), name="edit", arguments=each, index=place) for place, each in enumerate(arguments)
    )
    turn = events.turn("s", 0, tool_calls=calls, tools=tool(parameters))
    *_, reward = lab.score(SPEC, [turn, events.outcome(turn, "accepted", True, 1)], until=lab.at(100))
    return dict(reward.components)


@pytest.mark.parametrize("what", HOSTILE)
def test_nobody_else_notices_a_schema(lab: ModuleType, events: Any, what: str) -> None:
    """A schema that cannot be evaluated is not the model's fault."""
    found: dict[str, float] = {}
    assert steps_of(lambda: found.update(components(lab, events, HOSTILE[what], ARGUMENTS))) < 1_000_000
    assert found["accepted"] == 1.0


@pytest.mark.parametrize("what", ["a reference to nowhere", "alternatives without end", "a pattern that is none"])
def test_what_nobody_can_tell_is_no_fault_of_the_model(lab: ModuleType, events: Any, what: str) -> None:
    assert components(lab, events, HOSTILE[what], ARGUMENTS) == {"accepted": 1.0}


def test_a_pattern_is_followed(lab: ModuleType, events: Any) -> None:
    dated = {"properties": {"on": {"type": "string", "pattern": r"^\d{4}-\d\d-\d\d$"}}}
    assert components(lab, events, dated, '{"on": "2026-01-31"}') == {"accepted": 1.0}
    assert components(lab, events, dated, '{"on": "today"}') == {"accepted": 1.0, "malformed_call": -0.5}


def test_the_rest_of_a_schema_counts_where_a_part_is_not_followed(lab: ModuleType, events: Any) -> None:
    schema = {"properties": {"path": {"type": "string", "pattern": "^(?!/)"}}, "required": ["path"]}
    assert components(lab, events, schema, '{"path": "/a"}') == {"accepted": 1.0}
    assert "malformed_call" in components(lab, events, schema, '{"path": 1}')
    assert "malformed_call" in components(lab, events, schema, "{}")


def test_the_calls_of_a_turn_share_what_their_schemas_may_take(lab: ModuleType, events: Any) -> None:
    lists = '{"list": [' + ", ".join(map(str, range(2000))) + "]}"
    schema = {"properties": {"list": {"items": {"anyOf": [{"type": "string"}, {"minimum": 0}]}, "uniqueItems": True}}}
    assert components(lab, events, schema, lists) == {"accepted": 1.0}
    found: dict[str, float] = {}
    of_one = steps_of(lambda: components(lab, events, schema, lists))
    of_many = steps_of(lambda: found.update(components(lab, events, schema, *[lists] * 200)))
    assert of_many < 2 * of_one
    assert found == {"accepted": 1.0}


def test_parts_of_a_message_without_words_have_none() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {}}, {"type": "text", "text": None}, "b"]
    assert content_of({"content": parts}) == "a\n\n"
