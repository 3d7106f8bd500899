"""Texts of models, tools and users never end or delay the scoring of others."""

import json
from types import ModuleType
from typing import Any

import pytest

from core.events import ToolCall
from core.reward_spec import RewardSpec, call_line

SPEC = RewardSpec.model_validate(
    {
        "outcomes": {
            "accepted": {"type": "boolean", "weight": 1.0, "decides": True},
            "follow_up": {"type": "boolean", "weight": -1.0},
            "reverted": {"type": "boolean", "weight": -1.0},
            "tests_passed": {"type": "boolean", "weight": 1.0},
            "survived": {"type": "number", "weight": 1.0},
        },
        "derived": {"rules": ["follow_up", "regenerated", "abandoned", "reverted", "tool_results", "survival"]},
        "penalties": {"malformed_call": -0.5, "unbacked_claim": -0.5, "repeated_answer": -0.5},
        "claims": [{"says": "tests? pass", "needs": "^run_tests "}],
    }
)
TAKES = {"type": "object", "properties": {"lines": {"type": "number", "multipleOf": 0.5}}}
TOOLS = tuple(
    {"type": "function", "function": {"name": name, "parameters": TAKES}} for name in ("edit_file", "run_tests")
)
DEEP = "[" * 100_000
WORDS = {
    "nested deeply": DEEP,
    "an object nested deeply": '{"path": ' + DEEP,
    "a number without end": "9" * 10_000,
    "a count without end": "1" * 10_000 + " failed",
    "a number that no float can be": '{"path": "a", "lines": 1' + "0" * 400 + "}",
    "no number": '{"path": "a", "lines": NaN}',
    "an infinite number": '{"path": "a", "lines": 1e999}',
    "half a character": '{"path": "\\ud800", "text": "\\ud800"}',
    "zeros": "\0" * 1000,
    "no object": '"exit_code"',
    "a verdict that is an object": '{"exit_code": {}, "passed": []}',
}


def conversation(words: str) -> list[dict[str, Any]]:
    """Return a conversation with these words wherever a client can put them."""
    calls = [
        {"id": name, "type": "function", "function": {"name": name, "arguments": words}}
        for name in ("edit_file", "run_tests", "read_file")
    ]
    results = [{"role": "tool", "tool_call_id": call["id"], "content": words} for call in calls]
    return [
        {"role": "user", "content": words},
        {"role": "assistant", "content": words, "tool_calls": calls},
        *results,
        {"role": "user", "content": words},
    ]


@pytest.mark.parametrize("what", WORDS)
def test_the_turns_of_who_writes_them_are_scored_like_all_others(lab: ModuleType, events: Any, what: str) -> None:
    words = WORDS[what]
    call = ToolCall(id="run_tests", name="run_tests", arguments=words, index=0)
    messages = conversation(words)
    first = events.turn("s", 0, messages=tuple(messages[:1]), text=words, tool_calls=(call,), tools=TOOLS)
    second = events.turn("s", 1, messages=tuple(messages), text=words, parent_id=first.inference_id, tools=TOOLS)
    said = [events.outcome(turn, "accepted", True, 2) for turn in (first, second)]
    rewards = {reward.inference_id: reward for reward in lab.score(SPEC, [first, second, *said], until=lab.at(1e6))}
    assert [rewards[turn.inference_id].components["accepted"] for turn in (first, second)] == [1.0, 1.0]


def test_patterns_see_no_more_of_a_name_than_a_tool_can_have() -> None:
    """The shipped patterns take quadratic time in the name."""
    assert call_line("test" * 100_000, '{"path": "a"}') == "test" * 16 + ' {"path": "a"}'


def test_what_is_no_json_is_a_malformed_call(lab: ModuleType, events: Any) -> None:
    call = ToolCall(id="c", name="edit_file", arguments=json.dumps({"lines": float("nan")}), index=0)
    turn = events.turn("s", 0, tool_calls=(call,), tools=TOOLS)
    *_, reward = lab.score(SPEC, [turn, events.outcome(turn, "accepted", True, 1)], until=lab.at(100))
    assert reward.components == {"accepted": 1.0, "malformed_call": -0.5}
