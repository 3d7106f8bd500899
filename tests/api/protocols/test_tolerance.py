"""What real clients send is answered: honoured, or ignored and named, by header and by metric."""

from collections.abc import Callable
from typing import Any

import httpx
import msgspec
import pytest
from api_harness import MODEL, Service
from byte_renderer import ByteRenderer

from api.http.foreign import MOST_NAMED
from api.requests.bodies import ChatBody
from api.requests.constraints import check_wanted, ignored_in_wanted
from api.requests.messages import AssistantMessage, canonical
from api.requests.tools import Tool

CHAT = "/v1/chat/completions"
USER = {"role": "user", "content": "hi"}
CALL = {"id": "c1", "type": "function", "function": {"name": "run", "arguments": "{}"}}
CALLING = {"role": "assistant", "content": None, "tool_calls": [CALL]}
RESULT = {"role": "tool", "tool_call_id": "c1", "content": "ok"}
TOOL = {"type": "function", "function": {"name": "run", "parameters": {"type": "object", "properties": {}}}}
TEXT = {"type": "text", "text": "hi", "cache_control": {"type": "ephemeral"}}


def answered(service: Service, body: dict[str, Any], path: str = CHAT, **headers: str) -> httpx.Response:
    base = {"model": MODEL} if path != CHAT else {"model": MODEL, "messages": [USER]}
    answer = service.http.post(path, json=base | body, headers=headers)
    assert answer.status_code == 200, answer.text
    return answer


def ignored(answer: httpx.Response) -> list[str]:
    header = answer.headers.get("x-onward-ignored")
    return [] if header is None else header.split(",")


@pytest.mark.parametrize(
    ("body", "named"),
    [
        ({"reasoning_effort": "high"}, ["reasoning_effort"]),
        ({"service_tier": "auto", "verbosity": "low"}, ["service_tier", "verbosity"]),
        ({"prompt_cache_key": "k", "safety_identifier": "s"}, ["prompt_cache_key", "safety_identifier"]),
        ({"prediction": {"type": "content", "content": "x"}}, ["prediction"]),
        ({"chat_template_kwargs": {"enable_thinking": False}}, ["chat_template_kwargs"]),
        ({"cache_prompt": True, "min_tokens": 4}, ["cache_prompt", "min_tokens"]),
        ({"stream": True, "stream_options": {"include_obfuscation": True}}, ["stream_options.include_obfuscation"]),
        ({"messages": [{"role": "user", "content": [TEXT]}]}, ["messages[].content[].cache_control"]),
        (
            {"messages": [USER, {"role": "assistant", "content": "a", "provider_specific_fields": {"x": 1}}, USER]},
            ["messages[].provider_specific_fields"],
        ),
        (
            {"messages": [USER, {**CALLING, "tool_calls": [{**CALL, "provider_specific_fields": {"x": 1}}]}, RESULT]},
            ["messages[].tool_calls[].provider_specific_fields"],
        ),
        ({"tools": [{**TOOL, "function": {**TOOL["function"], "strict": True}}]}, ["tools[].function.strict"]),  # type: ignore[dict-item]
        ({"reasoning_effort": None, "prediction": None, "cache_prompt": False}, []),
        ({"response_format": {"type": "text", "json_schema": None, "next": 1}}, ["response_format.next"]),
        (
            {"messages": [USER, {"role": "assistant", "content": [{"type": "thinking", "thinking": "h"}, TEXT]}, USER]},
            ["messages[].content[].cache_control", "messages[].content[].thinking"],
        ),
    ],
)
def test_what_is_ignored_is_named(quick_service: Service, body: dict[str, Any], named: list[str]) -> None:
    assert ignored(answered(quick_service, body)) == named


@pytest.mark.parametrize(
    "body",
    [
        {"top_k": 0},
        {"top_k": -1},
        {"repetition_penalty": 1},
        {"modalities": ["text"]},
        {"functions": [], "function_call": "auto"},
        {"tool_choice": "auto"},
        {"tool_choice": "none"},
        {"stop": ["a", "b", "c", "d", "e", "f"]},
        {"messages": [USER, {"role": "assistant"}, USER]},
        {"messages": [{"role": "assistant", "content": "I am here"}, USER]},
        {"messages": [USER, {"role": "system", "content": "be brief"}, USER]},
        {"messages": [USER, CALLING, {"role": "user", "content": "stop"}]},
        {"messages": [USER, CALLING, {"role": "user", "content": "wait"}, RESULT]},
    ],
)
def test_what_is_honoured_is_answered_and_not_named(quick_service: Service, body: dict[str, Any]) -> None:
    assert ignored(answered(quick_service, body)) == []


def test_a_refusal_that_is_sent_back_is_what_the_answer_said(quick_service: Service) -> None:
    refusal = {"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]}
    answered(quick_service, {"messages": [USER, refusal, USER]})
    assert canonical(msgspec.convert(refusal, AssistantMessage)) == {"role": "assistant", "content": "no"}
    said = {"role": "user", "content": refusal["content"]}
    refused = quick_service.http.post(CHAT, json={"model": MODEL, "messages": [said]})
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "unsupported")


def test_what_nobody_knows_in_what_is_wanted_is_ignored_and_named() -> None:
    schema = {"name": "n", "schema": {"type": "object", "next": 1}, "strict": None, "next": 1}
    body = ChatBody(
        model=MODEL,
        messages=[],
        response_format={"type": "json_schema", "json_schema": schema, "next": 1, "then": None},
        tool_choice={"type": "function", "function": {"name": "run", "next": 1}, "next": 1},
        tools=[msgspec.convert(TOOL, Tool)],
    )
    names = [
        "response_format.next",
        "response_format.json_schema.next",
        "tool_choice.next",
        "tool_choice.function.next",
    ]
    assert ignored_in_wanted(body) == names
    check_wanted(body)
    many = {f"name{number}": 1 for number in range(100)}
    body.response_format = {"type": "text", **many}
    assert len(ignored_in_wanted(body)) <= MOST_NAMED + 1, "a header has room for so many"
    assert body.response_format == {"type": "text"}
    assert schema["schema"] == {"type": "object", "next": 1}, "keywords of a schema are the schema's"


@pytest.mark.parametrize(
    ("path", "tool"),
    [
        (CHAT, lambda name: {"type": "function", "function": {"name": name}}),
        ("/v1/responses", lambda name: {"type": "function", "name": name, "parameters": {}}),
        ("/v1/messages", lambda name: {"name": name, "input_schema": {"type": "object"}}),
    ],
)
def test_names_of_tools_have_up_to_128_characters(
    quick_service: Service, path: str, tool: Callable[[str], dict[str, Any]]
) -> None:
    """As Anthropic's and the Responses API take them: names of MCP's tools have their server's before them."""
    said = {"input": "hi"} if path == "/v1/responses" else {"messages": [USER], "max_tokens": 4}
    answered(quick_service, {**said, "tools": [tool("n" * 128)]}, path)
    refused = quick_service.http.post(path, json={"model": MODEL, **said, "tools": [tool("n" * 129)]})
    assert refused.status_code == 400
    assert "1 to 128" in refused.text


def test_what_is_ignored_is_neither_shown_nor_stored(service: Service) -> None:
    said = {"role": "assistant", "content": "a", "thinking_blocks": [{"thinking": "secret"}]}
    strict = {**TOOL, "function": {**TOOL["function"], "strict": True}}  # type: ignore[dict-item]
    given = answered(service, {"messages": [USER, said, USER], "tools": [strict]})
    turn = service.turn(given.json()["onward"]["inference_id"])
    assert turn.tools == (TOOL,)
    assert turn.messages[1] == {"role": "assistant", "content": "a"}
    plain = answered(service, {"messages": [USER, {"role": "assistant", "content": "a"}, USER], "tools": [TOOL]})
    assert service.turn(plain.json()["onward"]["inference_id"]).prompt_token_ids == turn.prompt_token_ids


def test_ignored_fields_are_counted_by_client(quick_service: Service) -> None:
    answered(quick_service, {"verbosity": "low"}, **{"User-Agent": "OpenAI/Python 2.1.0"})
    answered(quick_service, {"verbosity": "low"}, **{"User-Agent": "somebody's own"})
    text = quick_service.get("/metrics").text
    for client in ("openai-python", "other"):
        assert f'onward_ignored_fields_total{{client="{client}",field="verbosity"}}' in text


def test_a_prompt_may_be_a_list_of_one(quick_service: Service) -> None:
    assert ignored(answered(quick_service, {"prompt": ["x"], "echo": False, "best_of": 1}, "/v1/completions")) == []


def test_a_context_that_is_exceeded_is_said_in_openais_words(quick_service: Service) -> None:
    long = {"model": MODEL, "messages": [{"role": "user", "content": "x" * 2100}], "max_tokens": 50}
    error = quick_service.post(CHAT, long).json()["error"]
    assert error["code"] == "context_length_exceeded"
    assert error["message"].startswith("This model's maximum context length is ")
    assert " However, you requested " in error["message"]
    assert " in the messages, 50 in the completion). Please reduce the length of the messages" in error["message"]


def test_a_model_that_is_shown_no_late_system_message_says_so(make_service: Callable[..., Service]) -> None:
    service = make_service(renderer=ByteRenderer(late_system_refused="its chat template drops it"))
    late = {"model": MODEL, "messages": [USER, {"role": "developer", "content": "be brief"}, USER]}
    error = service.post(CHAT, late).json()["error"]
    assert (error["param"], error["code"]) == ("messages[1]", "unsupported")
    assert "its chat template drops it; put it before all others" in error["message"]
    assert service.post(CHAT, {**late, "messages": late["messages"][1:]}).status_code == 200  # type: ignore[index]


def test_health_stands_where_clients_look(quick_service: Service) -> None:
    assert quick_service.get("/health").json() == {"status": "ok"}
