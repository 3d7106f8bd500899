"""Invalid input of any kind gets an error in OpenAI's form that names the field, and the service stays up."""

import json
import re
import socket
import urllib.parse
from typing import Any

import httpx
import openai
import pytest
from api_harness import MODEL, Service
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from core.settings import BodySettings

CHAT = "/v1/chat/completions"
USER = {"role": "user", "content": "hi"}
CALL = {"id": "c1", "type": "function", "function": {"name": "run", "arguments": "{}"}}
CALLING = {"role": "assistant", "content": None, "tool_calls": [CALL]}
RESULT = {"role": "tool", "tool_call_id": "c1", "content": "ok"}


IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA", "detail": "low"}}


def tool(**function: Any) -> list[dict[str, Any]]:
    return [{"type": "function", "function": {"name": "run", **function}}]


def refused(answer: httpx.Response, status: int, param: str | None) -> dict[str, Any]:
    assert answer.status_code == status, answer.text
    error: dict[str, Any] = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["param"] == param, error
    assert error["code"], error
    return error


@pytest.mark.parametrize("path", [CHAT, "/v1/completions", "/v1/feedback"])
@pytest.mark.parametrize(
    "body",
    [b"", b"{", b'{"user": NaN}', b"\xff", b'{"user": "\xed\xa0\x80"}', b'{"user": "\\ud800"}', b"[" * 90_000],
)
def test_malformed_json(quick_service: Service, path: str, body: bytes) -> None:
    body = body.replace(b"user", b"evidence") if "feedback" in path else body
    is_counted = "feedback" in path and len(body) > BodySettings().large_bytes  # then before it is read
    error = refused(quick_service.http.post(path, content=body), 413 if is_counted else 400, None)
    assert error["code"] in (("too_many_values",) if is_counted else ("malformed_json", "invalid_field"))


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"functions": [{"name": "run"}]}, "functions"),
        ({"function_call": {"name": "run"}}, "function_call"),
        ({"modalities": ["text", "audio"]}, "modalities"),
        ({"repetition_penalty": 1.1}, "repetition_penalty"),
        ({"top_k": -2}, "top_k"),
        ({"temperature": "warm"}, "temperature"),
        ({"temperature": True}, "temperature"),
        ({"temperature": -0.1}, "temperature"),
        ({"temperature": 2.1}, "temperature"),
        ({"temperature": 1e-40}, "temperature"),
        ({"temperature": 0.0099}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"top_k": 1}, "top_k"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": 1.5}, "max_tokens"),
        ({"max_tokens": 3000}, "max_tokens"),
        ({"max_completion_tokens": 3000}, "max_completion_tokens"),
        ({"max_completion_tokens": 3, "max_tokens": 4}, "max_completion_tokens"),
        ({"n": 0}, "n"),
        ({"n": 17}, "n"),
        ({"seed": 1 << 64}, "seed"),
        ({"stop": [str(number) for number in range(17)]}, "stop"),
        ({"stop": ""}, "stop"),
        ({"stop": [1]}, "stop[0]"),
        ({"logit_bias": {"x": 1}}, "logit_bias"),
        ({"logit_bias": {"1": 101}}, "logit_bias[...]"),
        ({"logit_bias": dict.fromkeys(map(str, range(1025)), 1)}, "logit_bias"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"frequency_penalty": 3}, "frequency_penalty"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"tools": tool(), "tool_choice": "required"}, "tool_choice"),
        ({"tools": tool(), "tool_choice": {"type": "function", "function": {"name": "run"}}}, "tool_choice"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"metadata": {"a": 1}}, "metadata[...]"),
        ({"metadata": {"workload": "Has Space"}}, "metadata.workload"),
        ({"user": 7}, "user"),
        ({"session_id": ""}, "session_id"),
        ({"session_id": "with space"}, "session_id"),
        ({"turn_type": "sideways"}, "turn_type"),
        ({"messages": []}, "messages"),
        ({"messages": "hi"}, "messages"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0].content[0]"),
        ({"messages": [{"role": "assistant", "content": "x"}]}, "messages[0]"),
        ({"messages": [USER, {"role": "assistant", "content": "x"}]}, "messages[1]"),
        ({"messages": [USER, {"role": "assistant", "content": "so"}]}, "messages[1]"),
        ({"messages": [{"role": "system", "content": "x"}]}, "messages[0]"),
        ({"messages": [RESULT]}, "messages[0].tool_call_id"),
        ({"messages": [USER, CALLING]}, "messages[1]"),
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}, IMAGE]}]}, "messages[0].content[1]"),
        ({"messages": [USER, CALLING, RESULT, RESULT]}, "messages[3].tool_call_id"),
        ({"messages": [USER, {**CALLING, "tool_calls": [CALL, CALL]}, RESULT]}, "messages[1].tool_calls"),
        ({"messages": [{"role": "user", "content": "x" * 2100}]}, "messages"),
        ({"tools": tool(name="no spaces")}, "tools[0].function.name"),
        ({"tools": tool() + tool()}, "tools[1].function.name"),
        ({"tools": [{"type": "retrieval"}]}, "tools[0].type"),
        ({"tools": tool(parameters=[])}, "tools[0].function.parameters"),
        ({"tools": tool(parameters={"type": "string"})}, "tools[0].function.parameters.type"),
        (
            {"tools": tool(parameters={"type": "object", "properties": {"a": {"type": "text"}}})},
            "tools[0].function.parameters.properties.a.type",
        ),
        (
            {"tools": tool(parameters={"type": "object", "required": "a"})},
            "tools[0].function.parameters.required",
        ),
        (
            {"tools": tool(parameters={"type": "object", "properties": {"a": {"minimum": 1 << 70}}})},
            "tools[0].function.parameters.properties.a.minimum",
        ),
    ],
)
def test_the_answer_names_the_field(quick_service: Service, fields: dict[str, Any], param: str) -> None:
    body = {"model": MODEL, "messages": [USER], **fields}
    refused(quick_service.post(CHAT, body), 400, param)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt": ["a", "b"]}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": [1, 2]}, "prompt"),
        ({"prompt": "x", "echo": True}, "echo"),
        ({"prompt": "x", "logprobs": 6}, "logprobs"),
        ({"prompt": "x", "best_of": 2}, "best_of"),
        ({"prompt": "x" * 2000}, "prompt"),
        ({"prompt": "x", "max_tokens": 2000}, "max_tokens"),
        ({}, "prompt"),
    ],
)
def test_bad_raw_completions_name_the_field(quick_service: Service, fields: dict[str, Any], param: str) -> None:
    refused(quick_service.post("/v1/completions", {"model": MODEL, **fields}), 400, param)


@pytest.mark.parametrize(
    ("headers", "param"),
    [
        ({"X-Turn-Type": "x"}, "turn_type"),
        ({"X-Session-Id": "a b"}, "session_id"),
        ({"X-Session-Done": "perhaps"}, "session_done"),
        ({"x-onward-learn": "2"}, "x-onward-learn"),
        ({"x-onward-environment": "moon"}, "x-onward-environment"),
        ({"x-onward-workload": "A B"}, "metadata.workload"),
        ({"x-onward-harness": "x" * 201}, "x-onward-harness"),
        ({"x-onward-environment-image": "python:3.11"}, "x-onward-environment-image"),
        ({"x-onward-environment-image": "sha256:" + "a" * 63}, "x-onward-environment-image"),
    ],
)
def test_bad_headers_are_named(quick_service: Service, headers: dict[str, str], param: str) -> None:
    refused(quick_service.chat("hi", headers=headers), 400, param)


def test_an_error_quotes_no_more_than_can_be_read(quick_service: Service) -> None:
    said = quick_service.chat("hi", model="m" * 100_000).json()["error"]
    assert len(said["message"]) < 3000
    field = "x" * 100_000
    said = quick_service.http.post("/v1/feedback", json={field: 1}).json()["error"]
    assert (said["code"], len(said["message"]) < 3000, len(said["param"]) < 3000) == ("unknown_field", True, True)


def test_a_block_that_nobody_here_knows_is_refused_with_what_to_do(quick_service: Service) -> None:
    blocks = [{"type": "server_tool_use", "id": "t", "name": "web_search", "input": {}}]
    body = {"model": MODEL, "max_tokens": 9, "messages": [{"role": "assistant", "content": blocks}]}
    said = quick_service.http.post("/v1/messages", json=body).json()["error"]["message"]
    assert "messages[0].content[0].type" in said
    assert "server_tool_use" in said
    assert "leave it out, or send what it says as text" in said


def test_header_and_body_must_agree(quick_service: Service) -> None:
    refused(quick_service.chat("hi", session_id="a", headers={"X-Session-Id": "b"}), 400, "session_id")
    assert quick_service.chat("hi", session_id="a", headers={"X-Session-Id": "a"}).status_code == 200


def test_the_official_client_raises_its_own_errors(quick_service: Service) -> None:
    client = quick_service.client()
    with pytest.raises(openai.NotFoundError) as unknown:
        client.chat.completions.create(model="gpt-4", messages=[{"role": "user", "content": "x"}])
    assert (unknown.value.code, unknown.value.param) == ("model_not_found", "model")
    assert repr(MODEL) in str(unknown.value), "it says what to send instead"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("gpt-4")
    with pytest.raises(openai.BadRequestError) as empty:
        client.chat.completions.create(model=MODEL, messages=[])
    assert empty.value.param == "messages"
    with pytest.raises(openai.BadRequestError):
        list(client.chat.completions.create(model=MODEL, messages=[], stream=True))
    assert [model.id for model in client.models.list()] == [MODEL]


def test_a_body_over_the_limit_is_a_413(make_service: Any) -> None:
    service = make_service(bodies={"max_bytes": 2000})
    body = {"model": MODEL, "messages": [{"role": "user", "content": "x" * 2000}]}
    for path in (CHAT, "/v1/completions", "/v1/feedback"):
        refused(service.post(path, body), 413, None)

        def chunks() -> Any:
            for _ in range(5):
                yield b" " * 1000

        refused(service.http.post(path, content=chunks()), 413, None)
    assert service.chat("hi").status_code == 200


def test_a_client_that_hangs_up_within_its_body(quick_service: Service) -> None:
    host, port = quick_service.url.removeprefix("http://").split(":")
    for path in (CHAT, "/v1/feedback"):
        with socket.create_connection((host, int(port))) as connection:
            head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            connection.sendall(head.encode() + b'Content-Length: 100\r\n\r\n{"model"')
    assert quick_service.chat("hi").status_code == 200


def test_unknown_paths_and_methods_have_the_same_shape(quick_service: Service) -> None:
    missing = refused(quick_service.get("/v1/nothing"), 404, None)
    assert "what generates is POST /v1/chat/completions and POST /v1/completions" in missing["message"]
    refused(quick_service.get(CHAT), 405, None)
    refused(quick_service.get("/v1/rewards?after=x"), 400, "after")
    refused(quick_service.get("/v1/rewards?limit=100000"), 400, "limit")
    refused(quick_service.get("/v1/rewards?colour=1"), 400, "colour")


NUMBERS = ["9" * 5000, "9" * 20, "1" + "_0" * 3, "-1", "\u0661\u0662", "1e3", "1 2"]
QUERIES = ("after", "before", "limit", "turns")


@pytest.mark.parametrize("number", NUMBERS)
def test_numbers_of_any_length_are_a_4xx(quick_service: Service, number: str) -> None:
    """Every route's path and query has them, and the one header that holds a number."""
    paths = quick_service.get("/openapi.json").json()["paths"]
    asked = 0
    for path, methods in paths.items():
        for method in methods:
            filled = re.sub(r"\{\w+\}", urllib.parse.quote(number), path)
            queries = [f"{filled}?{name}={urllib.parse.quote(number)}" for name in QUERIES]
            if path == "/v1/rewards/stream":
                queries = [f"{filled}?after={urllib.parse.quote(number)}"]
            for url in [*queries, *([filled] if filled != path else [])]:
                answer = quick_service.http.request(method, url, json={} if method == "post" else None)
                plain = path in (
                    "/health",
                    "/healthz",
                    "/readyz",
                    "/metrics",
                    "/v1/models",
                    "/v1/outcomes",
                )  # they read no query
                is_an_id = path == "/v1/sessions" and "before" in url
                assert answer.status_code < 500
                assert plain or is_an_id or answer.status_code >= 400, url
                asked += 1
    assert asked > 60
    header = {"last-event-id": number.encode("latin-1", "replace")}
    refused(quick_service.http.get("/v1/rewards/stream", headers=header), 400, "Last-Event-ID")


@pytest.mark.parametrize("number", ["9" * 5000, "9" * 20, "1e400", "-" + "9" * 5000])
@pytest.mark.parametrize(
    ("path", "body"),
    [
        (CHAT, '{"model": "scripted", "messages": [{"role": "user", "content": "hi"}], "max_tokens": NUMBER}'),
        (CHAT, '{"model": "scripted", "messages": [{"role": "user", "content": "hi"}], "seed": NUMBER}'),
        (CHAT, '{"model": "scripted", "messages": [{"role": "user", "content": "hi"}], "logit_bias": {"NUMBER": 1}}'),
        (
            CHAT,
            '{"model": "scripted", "messages": [{"role": "user", "content": "hi"}],'
            ' "tools": [{"type": "function", "function": {"name": "a", "parameters": {"maximum": NUMBER}}}]}',
        ),
        ("/v1/feedback", '{"inference_id": "a", "metric_name": "rating", "value": NUMBER}'),
    ],
)
def test_numbers_of_any_length_in_a_body(quick_service: Service, path: str, body: str, number: str) -> None:
    answer = quick_service.http.post(path, content=body.replace("NUMBER", number))
    assert 400 <= answer.status_code < 500


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=8,
)
MESSAGE = st.fixed_dictionaries(
    {"role": st.sampled_from(["user", "assistant", "system", "tool", "developer"]), "content": st.text(max_size=20)},
    optional={"name": JSON, "tool_calls": JSON | st.just([CALL]), "tool_call_id": st.just("c1") | JSON},
)
SCHEMA = st.dictionaries(
    st.sampled_from(["type", "properties", "required", "items", "enum", "anyOf", "minimum", "$defs"]), JSON, max_size=4
)
TOOL = st.builds(lambda schema, name: tool(parameters=schema, name=name)[0], SCHEMA, st.text(max_size=4))
CHAT_FIELDS = {
    "messages": st.lists(MESSAGE, max_size=5) | JSON,
    "tools": st.lists(TOOL, max_size=2) | JSON,
    "temperature": st.floats() | JSON,
    "max_tokens": st.integers(1, 20) | JSON,
    "stop": st.lists(st.text(max_size=3), max_size=5) | JSON,
    "logit_bias": st.dictionaries(st.text(max_size=3), st.floats()) | JSON,
    "stream": st.booleans(),
    **dict.fromkeys(
        [
            "tool_choice",
            "n",
            "seed",
            "logprobs",
            "top_logprobs",
            "user",
            "metadata",
            "response_format",
            "session_id",
            "session_done",
            "turn_type",
            "store",
            "stream_options",
            "top_p",
            "min_p",
            "parallel_tool_calls",
            "other",
        ],
        JSON,
    ),
}


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(body=st.fixed_dictionaries({}, optional=CHAT_FIELDS))
@example(body={"messages": [{"role": "user", "content": "hi"}], "stream": True})
@example(body={"messages": [], "other": float("inf")})
def test_no_chat_body_is_a_5xx(quick_service: Service, body: dict[str, Any]) -> None:
    content = json.dumps({"model": MODEL, **body})  # NaN and infinities as Python spells them
    answer = quick_service.http.post(CHAT, content=content)
    assert answer.status_code in (200, 400), (content, answer.text)
    if answer.status_code == 400:
        assert set(answer.json()["error"]) == {"message", "type", "param", "code"}
    elif body.get("stream"):
        assert answer.text.endswith("data: [DONE]\n\n")


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(body=st.binary(max_size=60))
def test_no_bytes_are_a_5xx(quick_service: Service, body: bytes) -> None:
    assert quick_service.http.post(CHAT, content=body).status_code == 400
