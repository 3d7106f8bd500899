"""The costs of a turn's own conduct."""

import json
import math
from types import ModuleType
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.events import Completion, Reward, Segment, ToolCall
from core.operations.ledger import Effort
from core.reward_spec import EffortSpec, RewardSpec
from scoring.rewards.facts import has_malformed_call
from scoring.rewards.runs import is_failure

ACCEPTED = {"type": "boolean", "weight": 1.0, "decides": True, "wait_s": 10}
TOOL = {
    "type": "function",
    "function": {
        "name": "edit_file",
        "parameters": {
            "type": "object",
            "properties": {"line": {"type": "integer"}, "text": {"type": "string"}},
            "required": ["line", "text"],
        },
    },
}


def spec_of(**tables: Any) -> RewardSpec:
    return RewardSpec.model_validate({"outcomes": {"accepted": ACCEPTED}, "clip": (-100, 100), **tables})


def call(name: str = "edit_file", arguments: str = '{"line": 1, "text": ""}', index: int = 0) -> ToolCall:
    return ToolCall(id=f"call-{index}", name=name, arguments=arguments, index=index)


def said(role: str, content: str, *calls: ToolCall) -> dict[str, Any]:
    made = [{"id": c.id, "type": "function", "function": {"name": c.name, "arguments": c.arguments}} for c in calls]
    return {"role": role, "content": content} | ({"tool_calls": made} if calls else {})


def scored(lab: ModuleType, spec: RewardSpec, *turns: Completion, events: Any = ()) -> dict[str, Reward]:
    rewards = lab.score(spec, [*turns, *events], until=lab.at(10_000))
    return {reward.inference_id: reward for reward in rewards}


# ------------------------------------------------------------------------------------------------ effort

EFFORT = st.builds(
    EffortSpec,
    k=st.sampled_from([0.0, 1e-12, 1e-6, 0.01, 1.0]),
    q=st.sampled_from([0.0, 0.5, 1 - 1e-12, 1.0, 1 + 1e-12, 2.0]),
)


@given(spec=EFFORT, x=st.floats(0, 1e6))
def test_the_cost_is_the_formulas(spec: EffortSpec, x: float) -> None:
    """Composer 2's C(x), also where its denominator is zero or nearly so."""
    k, q = spec.k, spec.q
    if k < 1e-9:
        expected = x
    elif abs(q - 1) < 1e-9:
        expected = math.log(1 + k * x) / k
    else:
        expected = ((1 + k * x) ** (1 - q) - 1) / (k * (1 - q))
    assert spec.cost(x) == pytest.approx(expected, rel=1e-5, abs=1e-9)


@given(spec=EFFORT, x=st.floats(0, 1e4), more=st.floats(0, 1e4))
def test_more_effort_costs_more_and_each_next_step_less(spec: EffortSpec, x: float, more: float) -> None:
    first, second = spec.cost(x + more) - spec.cost(x), spec.cost(x + 2 * more) - spec.cost(x + more)
    assert first >= -1e-9
    assert second <= first + 1e-6 * (1 + abs(first))


def test_the_turns_of_a_path_together_pay_for_the_whole_path(lab: ModuleType) -> None:
    events = lab.Events()
    first = events.turn(
        "s",
        0,
        prompt_token_ids=tuple(range(10)),
        token_ids=(1,) * 6,
        segments=(kind("thinking", 0, 2), kind("tool", 2, 6)),
        logprobs=(-1.0,) * 6,
        tool_calls=(call(),),
        tools=(TOOL,),
    )
    history = (*first.messages, said("assistant", "", call()), said("tool", "ok"))
    second = events.turn(
        "s",
        1,
        parent_id=first.inference_id,
        messages=history,
        prompt_token_ids=tuple(range(20)),
        segments=(kind("answer", 0, 2),),
    )
    spec = spec_of(effort={"coefficient": 0.5, "k": 0.1, "q": 0.5, "tool_output": 0.5, "turn": 3})
    rewards = scored(lab, spec, first, second, events=[events.outcome(t, "accepted", True, 5) for t in (first, second)])
    whole = Effort(thinking=2, tool_call=4, tool_output=4, answer=2, calls=1, turns=2)
    paid = [rewards[turn.inference_id].components["effort"] for turn in (first, second)]
    assert math.fsum(paid) == pytest.approx(-0.5 * spec.effort.cost(whole.weighed(spec.effort)))
    assert rewards[first.inference_id].value == pytest.approx(1 + paid[0])


def test_calls_in_parallel_cost_less_than_the_same_calls_in_a_row(lab: ModuleType) -> None:
    spec = spec_of(effort={"coefficient": 1.0, "k": 0.0})
    events = lab.Events()
    calls = tuple(call(index=index) for index in range(3))
    parallel = [events.turn("parallel", 0, tool_calls=calls, tools=(TOOL,))]
    row = [
        events.turn("row", second, tool_calls=(one,), tools=(TOOL,), token_ids=(), logprobs=())
        for second, one in enumerate(calls)
    ]
    told = [events.outcome(turn, "accepted", True, 9) for turn in (*parallel, *row)]
    rewards = scored(lab, spec, *parallel, *row, events=told)
    cost = [math.fsum(rewards[turn.inference_id].components["effort"] for turn in turns) for turns in (parallel, row)]
    assert cost == pytest.approx([-(20 + 2 * 5), -3 * 20])


def test_effort_alone_is_no_reward(lab: ModuleType) -> None:
    events = lab.Events()
    spec = spec_of(effort={"coefficient": 1.0, "turn": 1})
    assert scored(lab, spec, events.turn("s", 0), events.turn("t", 0, purpose="side")) == {}


# ------------------------------------------------------------------------------------------------ form


@pytest.mark.parametrize(
    ("fields", "bad"),
    [
        ({"tool_calls": (call(),)}, False),
        ({"broken_calls": 1}, True),
        ({"tool_calls": (call("rm"),)}, True),
        ({"tool_calls": (call(arguments='{"line": 1}'),)}, True),
        ({"tool_calls": (call(arguments='{"line": "1", "text": ""}'),)}, True),
        ({"tool_calls": (call(arguments="{"),)}, True),
        ({"tool_calls": (call(arguments="[]"),)}, True),
        ({"tool_calls": (call(), call(index=1, arguments="{}"))}, True),
    ],
)
def test_malformed_calls_are_those_that_the_tool_cannot_take(
    lab: ModuleType, fields: dict[str, Any], bad: bool
) -> None:
    assert has_malformed_call(lab.Events().turn("s", 0, tools=(TOOL,), **fields)) is bad


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "nonsense"},
        {"$ref": "http://localhost:9/schema.json"},
        {"$ref": "#/$defs/missing"},
        {"$ref": "#"},
        {"properties": {"text": {"pattern": "^(?!a)"}}},
    ],
)
def test_a_schema_that_makes_no_sense_blames_nobody_and_asks_nobody(lab: ModuleType, schema: dict[str, Any]) -> None:
    tool = {"type": "function", "function": {"name": "edit_file", "parameters": schema}}
    arguments = json.dumps({"text": "a" * 60 + "!"})
    turn = lab.Events().turn("s", 0, tools=(tool,), tool_calls=(call(arguments=arguments),))
    assert not has_malformed_call(turn)


CLAIM = {"says": r"tests? (now )?pass", "needs": "^run_tests|pytest", "voided_by": "^edit_file"}
RAN, EDITED = call("run_tests", "{}"), call()


def ran(result: str | None, name: str = "run_tests", call_id: str = "call-0") -> list[dict[str, Any]]:
    answer = [] if result is None else [said("tool", result) | {"tool_call_id": call_id}]
    return [said("assistant", "", msgspec.structs.replace(call(name, "{}"), id=call_id)), *answer]


@pytest.mark.parametrize(
    ("before", "is_backed"),
    [
        (ran("3 passed"), True),
        (ran("1 failed, 2 passed"), False),
        (ran('{"exit_code": 1}', "pytest"), False),
        ([*ran("1 failed"), *ran("3 passed")], True),  # clients may give all calls one id
        ([*ran("3 passed"), *ran("1 failed")], False),
        ([*ran("3 passed", call_id="a"), *ran("1 failed", call_id="b")], False),
        ([*ran("3 passed"), *ran("edited", "edit_file")], False),
        (ran("it ran"), True),
        (ran(None), True),
        (ran("1 failed, says the log", "read_log"), True),
        (ran("Error: no such file", "read_log"), False),
        (ran("all is well\nexit code 0", "ci"), True),
        (ran("2 of 40 did not\nexit code 1", "ci"), False),  # the spec's `derived.tests` do not know it
        (ran('{"success": false}', "ci"), False),
    ],
)
def test_a_run_that_failed_backs_no_claim(lab: ModuleType, before: list[dict[str, Any]], is_backed: bool) -> None:
    claim = CLAIM | {"needs": "^run_tests|pytest|^read_log|^ci"}
    spec = spec_of(penalties={"unbacked_claim": -0.1}, claims=[claim])
    turn = lab.Events().turn("s", 0, text="All tests pass.", messages=(said("user", "a"), *before))
    assert bool(scored(lab, spec, turn)) is not is_backed


@pytest.mark.parametrize(
    ("result", "failed"),
    [
        ("Error: no such file", True),
        ("cat: x.py: No such file or directory", True),
        ("bash: line 1: foo: command not found", True),
        ("ls: cannot access 'x': No such file or directory", True),
        ("[error]: timed out", True),
        ("Traceback (most recent call last):\n  ...", True),
        ('{"status": "error", "detail": "gone"}', True),
        ('{"exit_code": 1}', True),
        ('{"success": true, "text": "Error"}', False),
        ('{"code": 200, "data": []}', False),  # a file, perhaps, and so are the next ones
        ("# Error handling\n...", False),
        ("Error boundaries in React are ...", False),
        ("error.py\nfoo.py", False),
        ('"""Exception types."""', False),
        ("Invalid input is refused with 400.", False),
        ("Traceback and its friends", False),
        ("print('exit code 3')", False),
        ("it ends with exit code 3", False),
        ("done\nexit code 2", True),
        ("done\nexit code 0", False),
        ("log = 'Error: no such file'\nraise ValueError", False),
        ("", False),
        ("1\n" * 300 + "error", False),
    ],
)
def test_a_result_says_whether_its_call_failed(result: str, failed: bool) -> None:
    assert is_failure(result) is failed


@pytest.mark.parametrize(
    ("fields", "fault"),
    [
        ({"broken_calls": 1}, "malformed_call"),
        ({"finish_reason": "length"}, "cut_off"),
        ({"text": " \n"}, "empty_answer"),
        (
            {
                "text": "It  is DONE.",
                "messages": (said("user", "a"), said("assistant", "It is done."), said("user", "b")),
            },
            "repeated_answer",
        ),
        ({"text": "All tests pass now."}, "unbacked_claim"),
        (
            {
                "text": "Tests pass.",
                "messages": (
                    said("user", "a"),
                    said("assistant", "", RAN),
                    said("tool", "ok"),
                    said("assistant", "", EDITED),
                    said("tool", "ok"),
                ),
            },
            "unbacked_claim",
        ),
        (
            {
                "text": "Tests pass.",
                "messages": (
                    said("user", "a"),
                    said("assistant", "", EDITED),
                    said("tool", "ok"),
                    said("assistant", "", RAN),
                    said("tool", "ok"),
                ),
            },
            None,
        ),
        ({"text": "Done."}, None),
        (
            {
                "text": "",
                "tool_calls": (call("run_tests", "{}"),),
                "tools": ({"type": "function", "function": {"name": "run_tests"}},),
            },
            None,
        ),
    ],
)
def test_bad_form_costs_once_and_says_so(lab: ModuleType, fields: dict[str, Any], fault: str | None) -> None:
    penalties = {
        "malformed_call": -0.5,
        "cut_off": -0.4,
        "empty_answer": -0.3,
        "repeated_answer": -0.2,
        "unbacked_claim": -0.1,
    }
    spec = spec_of(penalties=penalties, claims=[CLAIM])
    events = lab.Events()
    turn = events.turn("s", 0, **fields)
    alone = scored(lab, spec, turn)
    assert [reward.components for reward in alone.values()] == ([{fault: penalties[fault]}] if fault else [])
    praised = scored(lab, spec, turn, events=[events.outcome(turn, "accepted", True, 5)])[turn.inference_id]
    assert praised.value == pytest.approx(1 + (penalties[fault] if fault else 0))
    assert fault is None or f"{fault} {penalties[fault]:+.2f}" in praised.why


def test_a_suggestion_is_judged_by_what_becomes_of_it_alone(lab: ModuleType) -> None:
    events = lab.Events()
    turn = events.turn("s", 0, purpose="suggestion", finish_reason="length")
    spec = spec_of(
        penalties={"cut_off": -1}, effort={"coefficient": 1, "turn": 1}, suggestion={"ignored_reward": -0.05}
    )
    assert scored(lab, spec, turn)[turn.inference_id].components == {"ignored": -0.05}


# ------------------------------------------------------------------------------------------------ suggestions

OUTCOMES = {
    "accepted": {"type": "boolean", "weight": 9, "decides": True},
    "rejected": {"type": "boolean", "weight": -9, "decides": True},
    "partially_accepted": {"type": "number", "minimum": 0, "maximum": 1, "decides": True},
}


@pytest.mark.parametrize(
    ("text", "told", "value"),
    [
        ("x", {"accepted": True}, 0.75),
        ("x", {"accepted": False}, -0.25),
        ("x", {"rejected": True}, -0.25),
        ("x", {"rejected": False}, 0.0),
        ("x", {"partially_accepted": 0.5}, 0.25),
        ("x", {"accepted": True, "partially_accepted": 0.5}, 0.25),
        ("x", {}, -0.25),
        ("", {}, 0.0),
    ],
)
def test_a_show_threshold_pays_what_cursor_tab_pays(
    lab: ModuleType, text: str, told: dict[str, Any], value: float
) -> None:
    events = lab.Events()
    turn = events.turn("s", 0, purpose="suggestion", text=text)
    spec = spec_of(outcomes=OUTCOMES, suggestion={"show_threshold": 0.25})
    words = [events.outcome(turn, name, said, 5) for name, said in told.items()]
    assert scored(lab, spec, turn, events=words)[turn.inference_id].value == value


def test_the_threshold_is_for_suggestions_alone(lab: ModuleType) -> None:
    events = lab.Events()
    turn = events.turn("s", 0)
    spec = spec_of(outcomes=OUTCOMES, suggestion={"show_threshold": 0.25})
    assert scored(lab, spec, turn, events=[events.outcome(turn, "accepted", True, 5)])[turn.inference_id].value == 9


def kind(name: Any, start: int, end: int) -> Segment:
    return Segment(start=start, end=end, kind=name)
