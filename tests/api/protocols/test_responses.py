"""The Responses API with the official client: items, tools, streams, and answers that go on from answers."""

import asyncio
import json
import threading
from typing import Any

import openai
import pytest
from api_harness import MODEL, Service
from byte_renderer import END, call_ids, ids
from openresponses_types import types as open_responses
from pydantic import TypeAdapter
from scripted_policy import Script, says

from api.protocols.responses import routes
from api.protocols.responses.earlier import references_in
from api.protocols.responses.items import ResponsesConversation
from api.protocols.responses.request import Items
from api.requests.messages import AssistantMessage
from api.requests.responses import MessageItem, ReasoningItem, ReasoningText

WEATHER: Any = {
    "type": "function",
    "name": "get_weather",
    "description": "Get the current weather for a location",
    "parameters": {"type": "object", "properties": {"location": {"type": "string"}}, "required": ["location"]},
    "strict": False,
}
PARIS = {"location": "Paris"}
CALLS = Script((*call_ids("get_weather", PARIS), END))
RESOURCE = TypeAdapter(open_responses.ResponseResource)
EVENTS = {
    "response.created": open_responses.ResponseCreatedStreamingEvent,
    "response.in_progress": open_responses.ResponseInProgressStreamingEvent,
    "response.completed": open_responses.ResponseCompletedStreamingEvent,
    "response.incomplete": open_responses.ResponseIncompleteStreamingEvent,
    "response.output_item.added": open_responses.ResponseOutputItemAddedStreamingEvent,
    "response.output_item.done": open_responses.ResponseOutputItemDoneStreamingEvent,
    "response.content_part.added": open_responses.ResponseContentPartAddedStreamingEvent,
    "response.content_part.done": open_responses.ResponseContentPartDoneStreamingEvent,
    "response.output_text.delta": open_responses.ResponseOutputTextDeltaStreamingEvent,
    "response.output_text.done": open_responses.ResponseOutputTextDoneStreamingEvent,
    "response.function_call_arguments.delta": open_responses.ResponseFunctionCallArgumentsDeltaStreamingEvent,
    "response.function_call_arguments.done": open_responses.ResponseFunctionCallArgumentsDoneStreamingEvent,
}


def respond(service: Service, body: dict[str, Any], **headers: str) -> dict[str, Any]:
    answer = service.post("/v1/responses", {"model": MODEL, "input": "hi", **body}, **headers)
    assert answer.status_code == 200, answer.text
    said: dict[str, Any] = answer.json()
    return said


def refused(service: Service, body: dict[str, Any]) -> dict[str, Any]:
    answer = service.post("/v1/responses", {"model": MODEL, "input": "hi", **body})
    assert answer.status_code == 400, answer.text
    error: dict[str, Any] = answer.json()["error"]
    return error


def events_of(service: Service, body: dict[str, Any]) -> list[dict[str, Any]]:
    answer = service.post("/v1/responses", {"model": MODEL, "input": "hi", "stream": True, **body})
    assert answer.status_code == 200, answer.text
    blocks = [block.split("\n") for block in answer.text.strip().split("\n\n")]
    assert blocks.pop() == ["data: [DONE]"]
    events = [json.loads(data.removeprefix("data: ")) for _, data in blocks]
    assert [name.removeprefix("event: ") for name, _ in blocks] == [event["type"] for event in events]
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    return events


# The cases of Open Responses' compliance suite: each answer, and each event of a stream, has the specification's shape.
SAID: dict[str, dict[str, Any]] = {
    "basic": {"input": [{"type": "message", "role": "user", "content": "Say hello in exactly 3 words."}]},
    "system": {
        "input": [
            {"type": "message", "role": "system", "content": "You are a pirate."},
            {"type": "message", "role": "user", "content": "Say hello."},
        ]
    },
    "multi-turn": {
        "input": [
            {"type": "message", "role": "user", "content": "My name is Alice."},
            {"type": "message", "role": "assistant", "content": "Hello Alice!"},
            {"type": "message", "role": "user", "content": "What is my name?"},
        ]
    },
    "tools": {"input": [{"type": "message", "role": "user", "content": "The weather?"}], "tools": [WEATHER]},
}


@pytest.mark.parametrize("case", SAID)
def test_answers_have_the_shape_of_open_responses(service: Service, case: str) -> None:
    service.policy.scripts.append(CALLS if case == "tools" else says("hello there you"))
    answer = respond(service, SAID[case])
    RESOURCE.validate_python(answer)
    kind = "function_call" if case == "tools" else "message"
    assert (answer["status"], [item["type"] for item in answer["output"]]) == ("completed", [kind])


@pytest.mark.parametrize("case", ["basic", "tools"])
def test_streams_have_the_shape_of_open_responses(service: Service, case: str) -> None:
    service.policy.scripts.append(CALLS if case == "tools" else says("1 2 3"))
    events = events_of(service, SAID[case])
    for event in events:
        EVENTS[event["type"]].model_validate(event)
    assert events[-1]["response"]["status"] == "completed"
    RESOURCE.validate_python(events[-1]["response"])


def test_an_image_is_refused_by_its_place(service: Service) -> None:
    parts = [{"type": "input_text", "text": "What is it?"}, {"type": "input_image", "image_url": "data:,x"}]
    error = refused(service, {"input": [{"role": "user", "content": parts}]})
    assert (error["param"], error["code"]) == ("input[0].content[1]", "unsupported")


def test_the_official_client_streams_a_text_and_its_turn_is_logged_exactly(service: Service) -> None:
    service.policy.scripts.append(says("günther"))
    with service.client().responses.stream(model=MODEL, input="name?", instructions="Be brief.") as stream:
        text = "".join(event.delta for event in stream if event.type == "response.output_text.delta")
        final = stream.get_final_response()
    assert (text, final.output_text, final.status) == ("günther", "günther", "completed")
    turn = service.turn(final.id.removeprefix("resp_"))
    assert turn.token_ids == (*ids("günther"), END)
    assert [message["role"] for message in turn.messages] == ["system", "user"]
    assert final.usage is not None
    assert (final.usage.input_tokens, final.usage.output_tokens) == (len(turn.prompt_token_ids), 9)
    service.client().post(
        "/feedback", body={"inference_id": final.id, "metric_name": "accepted", "value": True}, cast_to=object
    )


def test_a_tool_is_called_and_its_result_continues_the_very_tokens(service: Service) -> None:
    service.policy.scripts += [CALLS, says("sunny")]
    client = service.client()
    asked: list[Any] = [{"role": "user", "content": "weather in Paris?"}]
    first = client.responses.create(model=MODEL, input=asked, tools=[WEATHER], store=False)
    (call,) = first.output
    assert call.type == "function_call"
    assert (call.name, json.loads(call.arguments)) == ("get_weather", PARIS)
    asked += [item.to_dict() for item in first.output]
    asked.append({"type": "function_call_output", "call_id": call.call_id, "output": "21 degrees"})
    second = client.responses.create(model=MODEL, input=asked, tools=[WEATHER], store=False)
    assert second.output_text == "sunny"
    one, two = (service.turn(answer.id.removeprefix("resp_")) for answer in (first, second))
    assert two.parent_id == one.inference_id
    assert (
        two.prompt_token_ids[: len(one.prompt_token_ids) + len(one.token_ids)] == one.prompt_token_ids + one.token_ids
    )
    assert two.learn
    assert two.trainable


def called(call_id: str) -> dict[str, Any]:
    return {"type": "function_call", "call_id": call_id, "name": "get_weather", "arguments": "{}"}


def result_of(call_id: str) -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": call_id, "output": f"of {call_id}"}


THOUGHT = {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "Another."}]}
SPOKEN = {"role": "assistant", "content": "And another."}


@pytest.mark.parametrize(
    "items",
    [
        [THOUGHT, called("c1"), THOUGHT, called("c2"), result_of("c1"), result_of("c2")],
        [SPOKEN, called("c1"), SPOKEN, called("c2"), result_of("c2"), result_of("c1")],
        [called("c1"), THOUGHT, called("c2"), result_of("c1"), SPOKEN, called("c3"), result_of("c2"), result_of("c3")],
        [called("c1"), {"role": "user", "content": "Wait."}, called("c1"), result_of("c1")],
    ],
    ids=["thoughts", "words", "a result that came late", "an interrupted call"],
)
def test_calls_wait_for_their_results_whatever_the_model_says_in_between(
    service: Service, items: list[dict[str, Any]]
) -> None:
    answer = respond(service, {"input": [{"role": "user", "content": "The weather?"}, *items], "tools": [WEATHER]})
    said = service.turn(answer["onward"]["inference_id"]).messages
    results = [message["tool_call_id"] for message in said if message["role"] == "tool"]
    assert results == [item["call_id"] for item in items if item.get("type") == "function_call_output"]


def test_a_streamed_call_is_put_together_by_the_official_client(service: Service) -> None:
    service.policy.scripts.append(Script((*ids("let me see"), *call_ids("get_weather", PARIS), END)))
    with service.client().responses.stream(model=MODEL, input="weather?", tools=[WEATHER]) as stream:
        final = stream.get_final_response()
    said, called = final.output
    assert said.type == "message"
    assert called.type == "function_call"
    assert (final.output_text, json.loads(called.arguments)) == ("let me see", PARIS)


def test_an_answer_goes_on_from_one_that_is_named(service: Service) -> None:
    service.policy.scripts += [says("blue"), says("green")]
    first = respond(service, {"input": "a colour?", "instructions": "Be brief."})
    second = respond(service, {"input": "another?", "instructions": "Be brief.", "previous_response_id": first["id"]})
    one, two = (service.turn(answer["onward"]["inference_id"]) for answer in (first, second))
    assert (two.parent_id, second["previous_response_id"]) == (one.inference_id, first["id"])
    assert two.prompt_token_ids[: len(one.token_ids)] == one.prompt_token_ids[: len(one.token_ids)]
    assert [message["content"] for message in two.messages] == ["Be brief.", "a colour?", "blue", "another?"]


def place_of(service: Service, answer: dict[str, Any]) -> tuple[str, str | None, tuple[int, ...]]:
    turn = service.turn(answer["onward"]["inference_id"])
    return turn.session_id, turn.parent_id, turn.prompt_token_ids


def stands_behind(service: Service, answer: dict[str, Any], earlier: dict[str, Any]) -> bool:
    """Return whether an answer stands behind the earlier one, in its session, and goes on from its very tokens."""
    session, parent, prompt = place_of(service, answer)
    turn = service.turn(earlier["onward"]["inference_id"])
    history = turn.prompt_token_ids + turn.token_ids
    return (session, parent, prompt[: len(history)]) == (turn.session_id, turn.inference_id, history)


@pytest.mark.parametrize("session", [None, "s1"], ids=["two sessions", "one session"])
def test_of_two_answers_of_the_same_words_it_goes_on_from_the_one_that_is_named(
    service: Service, session: str | None
) -> None:
    """The tokens of the two differ: only the first was cut off after its words."""
    service.policy.scripts += [Script(ids("hello"), finish="length"), says("hello"), says("well"), says("well")]
    given = {} if session is None else {"session_id": session}
    first, second = (respond(service, given) for _ in range(2))
    place_of(service, second)
    assert stands_behind(service, respond(service, {"input": "go on", "previous_response_id": first["id"]}), first)
    assert stands_behind(service, respond(service, {"input": "go on", "previous_response_id": second["id"]}), second)


def test_behind_a_named_answer_only_what_goes_on_from_it_is_looked_for(service: Service) -> None:
    """Both answers were gone on from in the same words, and the request tells them again as items."""
    service.policy.scripts += [says("hello"), says("hello"), says("well"), says("well"), says("x"), says("y")]
    first, second = (respond(service, {"session_id": "s1"}) for _ in range(2))
    place_of(service, second)
    on_first, on_second = (
        respond(service, {"input": "go on", "previous_response_id": each["id"]}) for each in (first, second)
    )
    place_of(service, on_first)
    place_of(service, on_second)
    told = [{"role": "user", "content": "go on"}, {"role": "assistant", "content": "well"}]
    told.append({"role": "user", "content": "and?"})
    assert stands_behind(service, respond(service, {"input": told, "previous_response_id": first["id"]}), first)
    assert stands_behind(service, respond(service, {"input": told, "previous_response_id": second["id"]}), on_second)


def test_instructions_do_not_outlive_their_request(service: Service) -> None:
    service.policy.scripts += [says("OK."), says("Well.")]
    first = respond(service, {"instructions": "Be brief."})
    second = respond(service, {"input": "more", "previous_response_id": first["id"]})
    turn = service.turn(second["onward"]["inference_id"])
    assert [message["content"] for message in turn.messages] == ["hi", "OK.", "more"]
    assert (turn.parent_id, turn.session_id) == (first["onward"]["inference_id"], first["onward"]["session_id"])
    assert service.turn(first["onward"]["inference_id"]).has_instructions


def test_what_is_no_conversation_is_not_gone_on_from(service: Service) -> None:
    raw = service.post("/v1/completions", {"model": MODEL, "prompt": "def f("}).json()
    error = refused(service, {"previous_response_id": raw["id"]})
    assert error["code"] == "previous_response_not_found"


def test_references_are_bounded(quick_service: Service) -> None:
    many = [{"type": "item_reference", "id": f"msg_{number}"} for number in range(300)]
    assert refused(quick_service, {"input": many})["param"] == "input"
    answer = quick_service.post("/v1/responses", {"model": MODEL, "input": "hi"}).json()
    twice = [{"type": "item_reference", "id": answer["output"][0]["id"]}] * 2
    said = refused(quick_service, {"input": twice})
    assert (said["param"], said["code"]) == ("input[1].id", "duplicate_item")


def test_references_are_looked_for_off_the_event_loop(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a large body: others would wait until all of its items were passed."""
    on_loop: list[bool] = []

    def note(items: Items) -> dict[str, str]:
        on_loop.append(asyncio._get_running_loop() is not None)
        return references_in(items)

    monkeypatch.setattr(routes, "references_in", note)
    for items in (1, 3_000):
        service.post("/v1/responses", {"model": MODEL, "input": [{"role": "user", "content": ""}] * items})
    assert on_loop == [True, False]


@pytest.mark.parametrize("path", ["/v1/responses", "/v1/messages", "/v1/fim/completions", "/infill"])
def test_a_header_says_on_each_route_that_no_words_are_stored(service: Service, path: str) -> None:
    bodies: dict[str, dict[str, Any]] = {
        "/v1/responses": {"model": MODEL, "input": "a secret"},
        "/v1/messages": {"model": MODEL, "max_tokens": 9, "messages": [{"role": "user", "content": "a secret"}]},
        "/v1/fim/completions": {"model": MODEL, "prompt": "a secret"},
        "/infill": {"input_prefix": "a secret", "input_suffix": ""},
    }
    answer = service.post(path, bodies[path], x_onward_store="false")
    turn = service.turn(answer.headers["x-onward-inference-id"])
    assert (turn.messages, turn.token_ids, turn.learn) == ((), (), False)
    assert turn.unstored is not None


def test_thinking_in_many_items_is_joined_once() -> None:
    """Joined anew with each item, 32 MiB of a body would take minutes."""
    count, part = 160_000, "x" * 200
    conversation, item = ResponsesConversation({}), ReasoningItem(type="reasoning", content=[ReasoningText(part)])
    for place in range(count):
        conversation.add_item(item, f"input[{place}]")
    conversation.add_item(MessageItem(role="assistant", content="so"), "input[n]")
    conversation.add_item(item, "input[n+1]")
    said, again = conversation.messages
    assert isinstance(said, AssistantMessage)
    assert isinstance(again, AssistantMessage)
    assert (said.content, again.reasoning_content) == ("so", part)
    assert said.reasoning_content == part * count


def test_items_may_be_named_by_their_ids(service: Service) -> None:
    service.policy.scripts += [CALLS, says("sunny")]
    first = respond(service, {"tools": [WEATHER]})
    (call,) = first["output"]
    items = [
        {"role": "user", "content": "hi"},
        {"type": "item_reference", "id": call["id"]},
        {"type": "function_call_output", "call_id": call["call_id"], "output": "21"},
    ]
    second = respond(service, {"input": items, "tools": [WEATHER]})
    assert second["onward"]["parent_id"] == first["onward"]["inference_id"]


def test_what_is_not_to_be_stored_cannot_be_got_again(service: Service) -> None:
    kept, gone = respond(service, {}), respond(service, {"store": False})
    service.turn(gone["onward"]["inference_id"])
    RESOURCE.validate_python(service.get(f"/v1/responses/{kept['id']}").json())
    assert service.client().responses.retrieve(kept["id"]).output_text == "hello"
    with pytest.raises(openai.NotFoundError):
        service.client().responses.retrieve(gone["id"])
    error = refused(service, {"previous_response_id": gone["id"]})
    assert (error["param"], error["code"]) == ("previous_response_id", "previous_response_not_found")


def test_a_tool_that_takes_a_text_is_called_with_one(service: Service) -> None:
    tool = {"type": "custom", "name": "apply_patch", "description": "Apply a patch", "format": {"type": "text"}}
    service.policy.scripts.append(Script((*call_ids("apply_patch", {"input": "*** Begin"}), END)))
    answer = respond(service, {"tools": [tool]})
    (call,) = answer["output"]
    assert (call["type"], call["name"], call["input"]) == ("custom_tool_call", "apply_patch", "*** Begin")
    service.turn(answer["onward"]["inference_id"])
    assert service.get(f"/v1/responses/{answer['id']}").json()["output"] == answer["output"]
    given = {"type": "custom_tool_call_output", "call_id": call["call_id"], "output": "done"}
    again = respond(service, {"tools": [tool], "input": [{"role": "user", "content": "hi"}, call, given]})
    assert again["onward"]["parent_id"] == answer["onward"]["inference_id"]


def test_an_answer_that_is_cut_off_says_so(service: Service) -> None:
    service.policy.scripts.append(Script(ids("12345"), finish="length"))
    answer = respond(service, {"max_output_tokens": 5})
    assert (answer["status"], answer["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
    service.policy.scripts.append(Script(ids("12345"), finish="length"))
    assert events_of(service, {"max_output_tokens": 5})[-1]["type"] == "response.incomplete"


def test_a_stream_that_fails_midway_ends_with_an_error(service: Service) -> None:
    service.policy.scripts.append(says("hello", fails_at=3))
    events = events_of(service, {})
    assert events[-1]["type"] == "error"
    assert events[-1]["error"]["code"] == "unavailable"


@pytest.mark.parametrize("ended", ["cancelled", "failed", "incomplete"])
def test_an_answer_that_was_broken_off_is_got_again_as_such(service: Service, ended: str) -> None:
    body = {"model": MODEL, "input": "hi", "stream": True, "max_output_tokens": 4}
    scripts = {
        "cancelled": says("hello", gate=threading.Event()),
        "failed": says("hello", fails_at=3),
        "incomplete": says("hello"),
    }
    service.policy.scripts.append(scripts[ended])
    with service.http.stream("POST", "/v1/responses", json=body) as answer:
        response_id = f"resp_{answer.headers['x-onward-inference-id']}"
        next(answer.iter_bytes()) if ended == "cancelled" else answer.read()
    service.turn(response_id.removeprefix("resp_"))
    got = service.get(f"/v1/responses/{response_id}").json()
    RESOURCE.validate_python(got)
    assert service.client().responses.retrieve(response_id).status == ended
    assert (got["status"], got["completed_at"]) == (ended, None)
    assert [item["status"] for item in got["output"]] == ["incomplete"]
    assert (got["incomplete_details"] is not None) == (ended == "incomplete")
    assert (got["error"] or {}).get("code") == ("server_error" if ended == "failed" else None)


@pytest.mark.parametrize(
    ("body", "named"),
    [
        ({"reasoning": {"effort": "high", "summary": "auto"}}, ["reasoning.effort", "reasoning.summary"]),
        ({"text": {"format": {"type": "text"}, "verbosity": "low"}}, ["text.verbosity"]),
        (
            {"include": ["reasoning.encrypted_content"], "truncation": "auto"},
            ["include.reasoning.encrypted_content", "truncation"],
        ),
        ({"tools": [{"type": "web_search"}, WEATHER]}, ["tools[].web_search"]),
        ({"prompt_cache_key": "k", "service_tier": "auto"}, ["prompt_cache_key", "service_tier"]),
    ],
)
def test_what_is_ignored_is_named(quick_service: Service, body: dict[str, Any], named: list[str]) -> None:
    answer = quick_service.post("/v1/responses", {"model": MODEL, "input": "hi", **body})
    assert answer.status_code == 200, answer.text
    assert answer.headers["x-onward-ignored"].split(",") == named


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"input": []}, "input"),
        ({"input": [{"type": "computer_call"}]}, "input[0].type"),
        ({"input": [{"type": "function_call_output", "call_id": "c", "output": "x"}]}, "input[0].call_id"),
        ({"input": [{"role": "assistant", "content": "a"}]}, "input[0]"),
        ({"input": [{"type": "item_reference", "id": "msg_x"}]}, "input[0].id"),
        ({"tools": [{"type": "local_shell"}]}, "tools[0].type"),
        ({"tools": [{"type": "web_search"}, {**WEATHER, "name": "a b"}]}, "tools[1].name"),
        ({"background": True}, "background"),
        ({"conversation": "conv_1"}, "conversation"),
        ({"prompt": {"id": "p"}}, "prompt"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"max_output_tokens": 5000}, "max_output_tokens"),
        ({"include": ["surprise"]}, "include[0]"),
        ({"previous_response_id": "resp_x"}, "previous_response_id"),
    ],
)
def test_what_is_wrong_is_named(quick_service: Service, body: dict[str, Any], param: str) -> None:
    assert refused(quick_service, body)["param"] == param
