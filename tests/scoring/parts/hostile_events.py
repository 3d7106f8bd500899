"""Events of an attacker who wants to stop everybody: each well-formed, none sensible."""

import json
import uuid
from types import ModuleType
from typing import Any

from hypothesis import strategies as st

from core.events import (
    Completion,
    LogprobSpace,
    Outcome,
    Sampling,
    Segment,
    SessionEnded,
    TokenRange,
    ToolCall,
    ToolCallTarget,
    VersionSpan,
)
from core.ids import InferenceId, OutcomeId, SessionId, UserHash, base_ref

NUMBERS = st.sampled_from(
    [0, -1, 1, 2**31, 2**63 - 1, -(2**63), 2**63, 1e-40, 1e308, -1e308, 5e-324, -0.0, float("inf"), float("nan")]
)
WORDS = st.one_of(
    st.text(max_size=20),
    st.sampled_from(
        [
            "",
            "\0",
            "\u202e",
            "🧨" * 50,
            "x" * 100_000,
            "{",
            '"',
            '{"a": "\\ud800"}',
            "[" * 200,
            "1e999",
            "../../etc",
            "%s",
        ]
    ),
)
JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), NUMBERS, WORDS),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(WORDS, inner, max_size=3)),
    max_leaves=8,
)


def nested(depth: int) -> Any:
    found: Any = {}
    for _ in range(depth):
        found = {"properties": {"a": found}, "type": "object"}
    return found


SCHEMAS = st.one_of(
    JSON,
    st.sampled_from(
        [
            nested(60),
            {"$ref": "#"},
            {"$ref": "#/nowhere", "type": "object", "required": ["path"]},
            {"$ref": "https://127.0.0.1:1/schema"},
            {"properties": {"a": {"$ref": "#/properties/a"}}},
            {"properties": {"a": {"$schema": "http://json-schema.org/draft-07/schema#", "pattern": "["}}},
            {"$schema": 7, "type": 7, "required": "path", "enum": None, "allOf": [], "not": {}},
            {"$dynamicRef": "#x", "$anchor": "", "$id": "::", "type": ["object", "object"]},
            {"type": "object", "properties": [], "additionalProperties": 3, "minProperties": -1},
            {"multipleOf": 0, "maximum": float("inf"), "minimum": 10**18},
            {"type": "object", "properties": {"a": True, "b": False}, "patternProperties": {"(": {}}},
        ]
    ),
)
TOOLS = st.one_of(
    st.fixed_dictionaries({"type": st.just("function"), "function": st.one_of(SCHEMAS, st.just([]), st.none())}),
    st.builds(
        lambda name, schema: {"type": "function", "function": {"name": name, "parameters": schema}},
        st.one_of(st.just("edit_file"), WORDS),
        SCHEMAS,
    ),
    st.dictionaries(WORDS, JSON, max_size=2),
)
ARGUMENTS = st.one_of(WORDS, JSON.map(json.dumps), st.just('{"a": ' * 150 + "1" + "}" * 150), st.just('{"path": "a"}'))
CALLS = st.builds(
    ToolCall,
    id=WORDS,
    name=st.one_of(st.just("edit_file"), WORDS),
    arguments=ARGUMENTS,
    index=st.sampled_from([0, -1, 2**40]),
)
MESSAGES = st.one_of(
    st.dictionaries(st.sampled_from(["role", "content", "tool_calls", "tool_call_id", "name"]), JSON, max_size=4),
    st.builds(
        lambda role, content: {"role": role, "content": content},
        st.sampled_from(["user", "assistant", "tool", "system", "prompt", "judge", "", "🧨"]),
        st.one_of(WORDS, JSON, st.lists(st.just({"type": "text", "text": None}), max_size=2)),
    ),
)
RANGES = st.sampled_from([(0, 0), (0, 2), (2, 0), (-1, 1), (5, 9), (-(2**40), 2**40)])


@st.composite
def turns(
    draw: st.DrawFn, lab: ModuleType, session: str, ids: list[InferenceId], index: int, now_s: float
) -> Completion:
    """Draw a turn of a session whose turns have `ids`; any of them may be its parent, even itself."""
    tokens = draw(st.sampled_from([(4, 5), (), (2**63,), (-1, 3), (10**9,)]))
    each = draw(st.sampled_from([-0.5, float("nan"), -1e30]))
    return lab.Events().turn(
        session,
        now_s,
        inference_id=ids[index],
        turn_index=draw(st.sampled_from([index, -1, 2**31, 2**63])),
        parent_id=draw(st.sampled_from([None, *ids, InferenceId(str(uuid.UUID(int=7)))])),
        user_id=draw(st.sampled_from([None, UserHash("somebody"), UserHash("")])),
        workload=draw(st.sampled_from(["write", "", "🧨", "w" * 500])),
        purpose=draw(st.sampled_from(["turn", "suggestion", "side", "summary"])),
        messages=tuple(draw(st.lists(MESSAGES, max_size=3))),
        tools=tuple(draw(st.lists(TOOLS, max_size=3))),
        tool_calls=tuple(draw(st.lists(CALLS, max_size=3))),
        broken_calls=draw(st.sampled_from([0, 1, -1, 10**6])),
        text=draw(WORDS),
        sampling=Sampling(temperature=draw(NUMBERS.map(float)), stop=tuple(draw(st.lists(WORDS, max_size=2)))),
        prompt_token_ids=draw(st.sampled_from([(1, 2, 3), (), (2**62,), (-5,)])),
        token_ids=tokens,
        logprobs=draw(st.sampled_from([(each,) * len(tokens), ()])),
        logprob_space=LogprobSpace(temperature=draw(st.sampled_from([1.0, 0.5]))),
        segments=tuple(Segment(start=start, end=end, kind="tool") for start, end in draw(st.lists(RANGES, max_size=2))),
        policy_versions=tuple(
            VersionSpan(start=start, end=min(end, 100), version=base_ref(draw(st.sampled_from([1, 0, 2**62]))))
            for start, end in draw(st.lists(RANGES, max_size=2))
        ),
        finish_reason=draw(st.sampled_from(["stop", "length", "tool_calls", "abort", "error"])),
        delivered_tokens=draw(st.sampled_from([2, -1, 2**40])),
        latency_ms=draw(NUMBERS.map(float)),
        session_done=draw(st.booleans()),
        tags=draw(st.dictionaries(WORDS, WORDS, max_size=2)),
    )


@st.composite
def outcomes(
    draw: st.DrawFn,
    lab: ModuleType,
    session: str,
    ids: list[InferenceId],
    said: list[OutcomeId],
    index: int,
    now_s: float,
) -> Outcome:
    """Draw an outcome of one's own turns or session; it may supersede itself, a later one or another user's."""
    about = draw(st.sampled_from([session, *ids]))
    start, end = draw(RANGES)
    return Outcome(
        outcome_id=said[index],
        inference_id=None if about == session else InferenceId(about),
        session_id=SessionId(session) if about == session else None,
        namespace=lab.NAMESPACE,
        user_id=draw(st.sampled_from([None, UserHash("somebody")])),
        name=draw(st.one_of(st.sampled_from(["accepted", "rejected", "tests_passed", "rating", "comment"]), WORDS)),
        value=draw(st.one_of(st.none(), st.booleans(), NUMBERS.map(float), WORDS)),
        target_range=draw(st.sampled_from([None, TokenRange(start=start, end=end)])),
        target_call=draw(st.sampled_from([None, ToolCallTarget(tool_call_id="\0"), ToolCallTarget(tool_call_id="c")])),
        evidence=draw(st.one_of(st.none(), WORDS)),
        source=draw(st.sampled_from(["client", "user", "environment", "judge", "derived"])),
        observed_at=draw(st.sampled_from([lab.at(now_s), lab.at(-1e9), lab.at(1e9)])),
        received_at=lab.at(now_s),
        supersedes=draw(st.sampled_from([None, *said])),
        withdrawn=draw(st.booleans()),
        tags=draw(st.dictionaries(WORDS, WORDS, max_size=2)),
    )


@st.composite
def sessions(draw: st.DrawFn, lab: ModuleType, name: str, others: list[OutcomeId], now_s: float) -> list[Any]:
    """Draw the events of one session of an attacker."""
    session = name + draw(st.sampled_from(["", "🧨", "\0", "s" * 5000]))
    ids = [lab.inference_id(SessionId(session), number) for number in range(draw(st.integers(1, 3)))]
    said = [OutcomeId(f"{session[:40]}-{number}") for number in range(draw(st.integers(0, 3)))]
    events: list[Any] = [draw(turns(lab, session, ids, index, now_s)) for index in range(len(ids))]
    events += [draw(outcomes(lab, session, ids, said + others, index, now_s)) for index in range(len(said))]
    if draw(st.booleans()):
        events.append(SessionEnded(session_id=SessionId(session), namespace=lab.NAMESPACE, received_at=lab.at(now_s)))
    return draw(st.permutations(events))
