"""Seconds on the critical path of tools: calls that ran together cost as long as the longest of them."""

from datetime import UTC, datetime, timedelta
from types import ModuleType
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.events import Completion, Segment, ToolCall
from core.operations.ledger import Effort
from core.records.call_times import call_times, critical_path_seconds
from core.reward_spec import EffortSpec, RewardSpec

ACCEPTED = {"type": "boolean", "weight": 1.0, "decides": True, "wait_s": 10}
NAMES = ("a", "b", "c")
ZERO = datetime(2026, 3, 1, tzinfo=UTC)


def result(name: str, began_s: float, took_s: float) -> dict[str, Any]:
    times = [(ZERO + timedelta(seconds=at)).isoformat() for at in (began_s, began_s + took_s)]
    onward = dict(zip(("started_at", "ended_at"), times, strict=True))
    return {"role": "tool", "tool_call_id": name, "content": "ok", "onward": onward}


def session(lab: ModuleType, name: str, results: list[dict[str, Any]]) -> list[Completion]:
    """Return a turn that makes three calls, and the one that reads their results; tokens are always the same."""
    events = lab.Events()
    calls = tuple(ToolCall(id=each, name="grep", arguments="{}", index=place) for place, each in enumerate(NAMES))
    said: dict[str, Any] = {"token_ids": (1,) * 4, "logprobs": (-1.0,) * 4}
    asks = events.turn(name, 0, tool_calls=calls, segments=(Segment(start=0, end=4, kind="tool"),), **said)
    reads = events.turn(
        name,
        9,
        parent_id=asks.inference_id,
        messages=(*asks.messages, {"role": "assistant", "content": ""}, *results),
        segments=(Segment(start=0, end=4, kind="answer"),),
        **said,
    )
    return [asks, reads]


def paid(lab: ModuleType, spec: RewardSpec, turns: list[Completion]) -> list[float]:
    events = lab.Events()
    told = [events.outcome(turn, "accepted", True, 12) for turn in turns]
    rewards = {reward.inference_id: reward for reward in lab.score(spec, [*turns, *told], until=lab.at(10_000))}
    return [rewards[turn.inference_id].components["effort"] for turn in turns]


def test_of_equal_tokens_the_parallel_one_earns_more(lab: ModuleType) -> None:
    spec = RewardSpec.model_validate(
        {"outcomes": {"accepted": ACCEPTED}, "clip": (-100, 100), "effort": {"coefficient": 1, "k": 0, "second": 3}}
    )
    serial = session(lab, "serial", [result(name, 2.0 * place, 2.0) for place, name in enumerate(NAMES)])
    parallel = session(lab, "parallel", [result(name, 0.1 * place, 2.0) for place, name in enumerate(NAMES)])
    untimed = [{**result(name, 0, 1), "onward": None} for name in NAMES]
    (asked, late), (same, early), (_, free) = (
        paid(lab, spec, turns) for turns in (serial, parallel, session(lab, "untimed", untimed))
    )
    assert asked == same, "who calls does not know yet how long it takes"
    assert early - late == pytest.approx(3 * (6.0 - 2.2))
    assert free - early == pytest.approx(3 * 2.2)


def test_seconds_cost_nothing_unless_a_spec_says_so_and_what_was_stored_before_has_none() -> None:
    assert Effort(seconds=5.0).weighed(EffortSpec(coefficient=1)) == 0.0
    assert (Effort(seconds=1.5, turns=1) + Effort(seconds=2.0)).weighed(EffortSpec(second=2.0)) == 7.0
    assert msgspec.json.decode(b"[1,2,3,4,5,6,7]", type=Effort) == Effort(1, 2, 3, 4, 5, 6, 7, 0.0)


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 20)), max_size=8))
def test_a_second_counts_once_however_many_run(spans: list[tuple[int, int]]) -> None:
    results = [result(f"call-{place}", began, took) for place, (began, took) in enumerate(spans)]
    busy = {second for began, took in spans for second in range(began, began + took)}
    assert critical_path_seconds(call_times(results)) == len(busy)
