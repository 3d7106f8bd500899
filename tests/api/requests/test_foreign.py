"""What clients send that nobody knows yet changes nothing, and is named; what would change the answer is refused."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from api_harness import MODEL, Service, serve

from api.http import foreign
from api.http.foreign import decode_foreign
from api.requests.bodies import chat_decoder
from core.errors import InvalidRequest

USER = {"role": "user", "content": "hello"}
CHAT, TEXT, MESSAGES, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/responses"
NEW: dict[str, Any] = {"next_week": {"deep": [1]}}
TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}, **NEW}, **NEW}
CALL = {"id": "c", "type": "function", "function": {"name": "look", "arguments": "{}", **NEW}, **NEW}
ANSWER = {"role": "assistant", "content": None, "tool_calls": [CALL], **NEW}
RESULT = {"role": "tool", "tool_call_id": "c", "content": [{"type": "text", "text": "x", **NEW}], **NEW}
BODIES: dict[str, tuple[str, dict[str, Any], set[str]]] = {
    "copilot": (
        CHAT,
        {
            "model": MODEL,
            "messages": [USER | {"copilot_cache_control": {"type": "ephemeral"}}],
            "tools": [TOOL | {"copilot_mcp_server_name": "files"}],
            "stream_options": {"continuous_usage_stats": True},
            "stream": True,
        },
        {
            "messages[].copilot_cache_control",
            "tools[].copilot_mcp_server_name",
            "tools[].next_week",
            "tools[].function.next_week",
            "stream_options.continuous_usage_stats",
        },
    ),
    "chat": (
        CHAT,
        {"model": MODEL, "messages": [USER, ANSWER, RESULT], **NEW},
        {
            "next_week",
            "messages[].next_week",
            "messages[].tool_calls[].next_week",
            "messages[].tool_calls[].function.next_week",
            "messages[].content[].next_week",
        },
    ),
    "completion": (TEXT, {"model": MODEL, "prompt": "def", **NEW}, {"next_week"}),
    "messages": (
        MESSAGES,
        {
            "model": MODEL,
            "max_tokens": 8,
            "system": [{"type": "text", "text": "s", **NEW}],
            "messages": [{"role": "user", "content": [{"type": "text", "text": "x", **NEW}], **NEW}],
            "tools": [{"name": "look", "input_schema": {"type": "object"}, **NEW}],
            **NEW,
        },
        {
            "next_week",
            "system[].next_week",
            "messages[].next_week",
            "messages[].content[].next_week",
            "tools[].next_week",
        },
    ),
    "count": (f"{MESSAGES}/count_tokens", {"model": MODEL, "messages": [USER], **NEW}, {"next_week"}),
    "responses": (
        RESPONSES,
        {
            "model": MODEL,
            "input": [{"role": "user", "content": [{"type": "input_text", "text": "x", **NEW}], **NEW}],
            "tools": [{"type": "function", "name": "look", "parameters": {"type": "object"}, **NEW}],
            "reasoning": {"effort": "low", **NEW},
            **NEW,
        },
        {"next_week", "input[].next_week", "input[].content[].next_week", "tools[].next_week", "reasoning.next_week"},
    ),
    "mistral": ("/v1/fim/completions", {"model": MODEL, "prompt": "a", "suffix": "b", **NEW}, {"next_week"}),
    "llama.cpp": ("/infill", {"input_prefix": "a", "input_suffix": "b", **NEW}, {"next_week"}),
    "tabby": (
        "/tabby/v1/completions",
        {"language": "python", "segments": {"prefix": "a", "suffix": "b", **NEW}, **NEW},
        {"next_week", "segments.next_week"},
    ),
}


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with serve(tmp_path_factory.mktemp("foreign")) as service:
        yield service


@pytest.mark.parametrize("name", BODIES)
def test_what_nobody_knows_is_left_out_and_named(service: Service, name: str) -> None:
    path, body, named = BODIES[name]
    answer = service.post(path, body)
    assert answer.status_code == 200, answer.text
    assert named <= set(answer.headers["x-onward-ignored"].split(","))
    if "x-onward-inference-id" in answer.headers:
        turn = service.turn(answer.headers["x-onward-inference-id"])
        assert "next_week" not in repr((turn.messages, turn.tools))


@pytest.mark.parametrize("name", BODIES)
def test_who_asks_to_be_refused_is_refused(service: Service, name: str) -> None:
    path, body, named = BODIES[name]
    answer = service.post(path, body, x_onward_strict="true")
    assert answer.status_code == 400
    assert "x-onward-strict" in answer.text
    assert any(field in answer.text for field in named)


@pytest.mark.parametrize("field", ["guided_json", "ignore_eos", "lora_path", "xtc_probability", "documents"])
def test_what_changes_the_answer_is_refused_with_what_to_send(service: Service, field: str) -> None:
    answer = service.post(CHAT, {"model": MODEL, "messages": [USER], field: 1, **NEW})
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert (error["param"], error["code"]) == (field, "unsupported")
    assert foreign.CHANGES_ANSWERS[field] in error["message"]


@pytest.mark.parametrize(
    ("field", "value"),
    [("add_generation_prompt", False), ("typical_p", 0), ("tfs", 0.0), ("repeat_penalty", 0), ("json_schema", {})],
)
def test_a_small_value_that_says_much_is_refused(field: str, value: object) -> None:
    """The prompt ends with the question, few tokens are left to choose from, or any JSON is wanted: `{}` means that."""
    with pytest.raises(InvalidRequest, match=field):
        left_out({field: value})


def test_all_else_is_checked_as_if_it_had_not_been_there(service: Service) -> None:
    body = {"model": MODEL, "messages": [USER | NEW], "temperature": "warm", **NEW}
    answer = service.post(CHAT, body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "temperature")


@pytest.mark.parametrize("path", ["/v1/feedback", "/v1/feedback/batch"])
def test_own_routes_refuse_what_they_do_not_know(service: Service, path: str) -> None:
    one = {"inference_id": "x", "metric_name": "accepted", "value": True, **NEW}
    answer = service.post(path, one if path.endswith("feedback") else {"feedback": [one]})
    assert "unknown field" in answer.text
    assert "next_week" in answer.text


def test_names_of_clients_do_not_grow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither headers nor metrics: whatever a client calls its fields, and however many it sends."""
    monkeypatch.setattr(foreign, "_spelled", set())
    odd = ["a" * 65, "ü", "a b", "a,b", "a\r\nb", "", "a.b"]
    for name in odd:
        assert left_out({name: 1}) == ["other"]
    assert len(left_out({f"name{number}": 1 for number in range(100)})) <= foreign.MOST_NAMED + 1
    for number in range(100):
        left_out({f"other{number}-{each}": 1 for each in range(10)})
    assert len(foreign._spelled) == foreign._MOST_SPELLED
    assert left_out({"brand-new": 1, "name3": 1}) == ["other", "name3"]


def left_out(fields: dict[str, Any]) -> list[str]:
    _, names = decode_foreign(chat_decoder, json.dumps({"model": "m", "messages": [USER], **fields}).encode())
    return names


def test_no_body_that_was_refused_before_is_taken_now() -> None:
    for raw in (b"{", b"[]", b"null", b'{"next_week": 1}', b'{"model": 3, "messages": [], "next_week": 1}'):
        with pytest.raises(InvalidRequest):
            decode_foreign(chat_decoder, raw)


@pytest.mark.parametrize("name", sorted(foreign.CHANGES_ANSWERS))
def test_what_says_no_more_than_its_absence_changes_nothing(name: str) -> None:
    """Libraries send every option that they have, at the value that means nothing."""
    for value in (None, *foreign.NEUTRAL.get(name, (False, 0, "", [], {}))):
        raw = json.dumps({"model": MODEL, "messages": [USER], name: value}).encode()
        assert decode_foreign(chat_decoder, raw)[1] == []
    with pytest.raises(InvalidRequest, match=name):
        decode_foreign(chat_decoder, json.dumps({"model": MODEL, "messages": [USER], name: 7}).encode())
