"""Anthropic's Messages API with the official client: blocks, tools, thinking, streams, counts and errors."""

import json
from typing import TYPE_CHECKING, Any

import pytest
from api_harness import MODEL, Service
from byte_renderer import END, call_ids, ids
from scripted_policy import Script, says

from api.protocols.anthropic.claude_code import user_and_session
from api.protocols.places import renamed
from core.errors import InvalidRequest

if TYPE_CHECKING:
    from anthropic import Anthropic

WEATHER: Any = {
    "name": "get_weather",
    "description": "Get the current weather",
    "input_schema": {"type": "object", "properties": {"location": {"type": "string"}}, "required": ["location"]},
}
PARIS = {"location": "Paris"}
USER: Any = {"role": "user", "content": "hi"}


def client_of(service: Service, **options: Any) -> "Anthropic":
    from anthropic import Anthropic

    options = {"api_key": "any", "max_retries": 0, **options}
    return service.clients.enter_context(Anthropic(base_url=service.url, **options))


def body_of(**fields: Any) -> dict[str, Any]:
    return {"model": MODEL, "max_tokens": 200, "messages": [USER], **fields}


def prompt_tokens(usage: Any) -> int:
    """Count those that the cache had, too, which Anthropic counts apart."""
    return int(usage.input_tokens + usage.cache_read_input_tokens)


def refused(service: Service, status: int = 400, path: str = "/v1/messages", **fields: Any) -> dict[str, Any]:
    answer = service.post(path, body_of(**fields))
    assert answer.status_code == status, answer.text
    said = answer.json()
    assert said["type"] == "error"
    error: dict[str, Any] = said["error"]
    return error


def test_the_official_client_gets_an_answer_and_its_turn_is_logged_exactly(service: Service) -> None:
    service.policy.scripts.append(says("günther"))
    answer = client_of(service).messages.create(
        model=MODEL, max_tokens=200, system="Be brief.", messages=[USER], metadata={"user_id": "anna"}
    )
    assert (answer.content[0].to_dict(), answer.stop_reason) == ({"type": "text", "text": "günther"}, "end_turn")
    turn = service.turn(answer.id.removeprefix("msg_"))
    assert turn.token_ids == (*ids("günther"), END)
    assert (prompt_tokens(answer.usage), answer.usage.output_tokens) == (len(turn.prompt_token_ids), 9)
    assert [message["role"] for message in turn.messages] == ["system", "user"]
    assert turn.user_id is not None
    told = {"inference_id": answer.id, "metric_name": "accepted", "value": True}
    assert service.post("/v1/feedback", told).status_code == 200


def test_the_official_client_streams_an_answer(service: Service) -> None:
    service.policy.scripts.append(says("hello there"))
    with client_of(service).messages.stream(model=MODEL, max_tokens=200, messages=[USER]) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert (text, final.stop_reason, final.usage.output_tokens) == ("hello there", "end_turn", 12)


@pytest.mark.parametrize("streams", [False, True])
def test_a_tool_is_called_and_its_result_continues_the_very_tokens(service: Service, streams: bool) -> None:
    service.policy.scripts += [Script((*ids("let me see"), *call_ids("get_weather", PARIS), END)), says("sunny")]
    client = client_of(service)
    asked: list[Any] = [{"role": "user", "content": [{"type": "text", "text": "weather in Paris?"}]}]
    options: Any = {"model": MODEL, "max_tokens": 200, "tools": [WEATHER]}
    if streams:
        with client.messages.stream(messages=asked, **options) as stream:
            first = stream.get_final_message()
    else:
        first = client.messages.create(messages=asked, **options)
    said, called = first.content
    assert first.stop_reason == "tool_use"
    assert said.to_dict() == {"type": "text", "text": "let me see"}
    assert called.type == "tool_use"
    assert (called.name, called.input) == ("get_weather", PARIS)
    result = {"type": "tool_result", "tool_use_id": called.id, "content": [{"type": "text", "text": "21 degrees"}]}
    asked += [{"role": "assistant", "content": [block.to_dict() for block in first.content]}]
    asked += [{"role": "user", "content": [result, {"type": "text", "text": "and now?"}]}]
    second = client.messages.create(messages=asked, **options)
    one, two = (service.turn(answer.id.removeprefix("msg_")) for answer in (first, second))
    assert two.parent_id == one.inference_id
    before = one.prompt_token_ids + one.token_ids
    assert two.prompt_token_ids[: len(before)] == before
    assert [message["role"] for message in two.messages] == ["user", "assistant", "tool", "user"]


def test_the_events_of_a_stream_come_in_their_order(service: Service) -> None:
    service.policy.scripts.append(Script((*ids("a"), *call_ids("get_weather", PARIS), END)))
    answer = service.post("/v1/messages", body_of(stream=True, tools=[WEATHER]))
    events = [json.loads(line[6:]) for line in answer.text.split("\n") if line.startswith("data: ")]
    assert [event["type"] for event in events] == [
        "message_start",
        *["content_block_start", "content_block_delta", "content_block_stop"] * 2,
        "message_delta",
        "message_stop",
    ]
    assert [event["index"] for event in events if "index" in event] == [0, 0, 0, 1, 1, 1]


def test_a_stop_string_is_named(service: Service) -> None:
    service.policy.scripts.append(says("one two three"))
    answer = client_of(service).messages.create(model=MODEL, max_tokens=200, messages=[USER], stop_sequences=[" two"])
    assert (answer.stop_reason, answer.stop_sequence) == ("stop_sequence", " two")
    assert answer.content[0].to_dict()["text"] == "one"


def test_more_tokens_than_there_is_room_for_are_as_many_as_there_is(service: Service) -> None:
    answer = service.post("/v1/messages", body_of(max_tokens=32000))
    assert answer.status_code == 200
    turn = service.turn(answer.json()["onward"]["inference_id"])
    assert turn.sampling.max_tokens == 2000 - len(turn.prompt_token_ids)
    assert answer.headers["x-onward-sampling-overridden"] == "max_tokens"


def test_tokens_are_counted_without_a_turn(service: Service) -> None:
    asked: Any = {"messages": [USER], "system": "Be brief.", "tools": [WEATHER]}
    counted = client_of(service).messages.count_tokens(model=MODEL, **asked)
    answer = client_of(service).messages.create(model=MODEL, max_tokens=200, **asked)
    assert counted.input_tokens == prompt_tokens(answer.usage)
    service.turn(answer.id.removeprefix("msg_"))
    assert len(service.all_turns()) == 1


def test_what_is_ignored_is_never_named_in_the_clients_own_spelling(service: Service) -> None:
    tool = {"type": "web_search\r\nset-cookie: a=b", "name": "x"}
    answer = service.post("/v1/messages", body_of(tools=[tool]))
    assert (answer.status_code, answer.headers["x-onward-ignored"]) == (200, "tools[].web_search")
    assert "set-cookie" not in answer.headers
    assert refused(service, tools=[tool] * 200)["param"] == "tools"


def test_counting_names_what_is_ignored_and_obeys_the_limit(make_service: Any) -> None:
    service = make_service(keys=[{"key": "key-of-anna", "namespace": "anna", "requests_per_minute": 1, "burst": 1}])
    asked = {"model": MODEL, "messages": [USER], "thinking": {"type": "enabled"}}
    first, second = (service.post("/v1/messages/count_tokens", asked, x_api_key="key-of-anna") for _ in range(2))
    assert (first.status_code, first.headers["x-onward-ignored"], second.status_code) == (200, "thinking", 429)


def test_a_prompt_that_is_too_long_is_refused_in_anthropics_words(service: Service) -> None:
    error = refused(service, messages=[{"role": "user", "content": "x" * 3000}])
    assert error["message"].startswith("prompt is too long: ")
    assert error["message"].endswith(" tokens > 2000 maximum")


def test_errors_have_anthropics_shape_wherever_they_arise(service: Service) -> None:
    assert refused(service, model="other", status=404)["type"] == "not_found_error"
    assert service.get("/v1/messages").json()["error"]["type"] == "invalid_request_error"
    counted = service.post("/v1/messages/count_tokens", {"model": MODEL})
    assert counted.json()["type"] == "error"
    foreign = service.http.post("/v1/messages", json=body_of(), headers={"origin": "https://elsewhere.example"})
    assert (foreign.status_code, foreign.json()["error"]["type"]) == (403, "permission_error")


def test_a_key_may_come_as_anthropics_clients_send_it(make_service: Any) -> None:
    from anthropic import AuthenticationError

    service = make_service(keys=[{"key": "secret-of-anna", "namespace": "anna"}])
    answer = client_of(service, api_key="secret-of-anna").messages.create(model=MODEL, max_tokens=200, messages=[USER])
    assert service.turn(answer.id.removeprefix("msg_")).namespace == "anna"
    with pytest.raises(AuthenticationError):
        client_of(service, api_key="guess").messages.create(model=MODEL, max_tokens=200, messages=[USER])


def test_a_stream_that_fails_midway_ends_with_an_error(service: Service) -> None:
    from anthropic import APIStatusError

    service.policy.scripts.append(says("hello", fails_at=3))
    with (
        pytest.raises(APIStatusError, match="engine"),
        client_of(service).messages.stream(model=MODEL, max_tokens=200, messages=[USER]) as stream,
    ):
        list(stream.text_stream)


CACHED = {"type": "text", "text": "hi", "cache_control": {"type": "ephemeral"}}


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"system": [CACHED]}, ["system[].cache_control"]),
        ({"messages": [{"role": "user", "content": [CACHED]}]}, ["messages[].content[].cache_control"]),
        ({"tools": [{**WEATHER, "cache_control": {"type": "ephemeral"}}]}, ["tools[].cache_control"]),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, ["tools[].web_search"]),
        (
            {"thinking": {"type": "enabled", "budget_tokens": 1024}, "service_tier": "auto"},
            ["thinking", "service_tier"],
        ),
        (
            {"output_config": {"effort": "high", "task_budget": {"type": "tokens", "total": 64}}},
            ["output_config.effort", "output_config.task_budget"],
        ),
    ],
)
def test_what_is_ignored_is_named(quick_service: Service, fields: dict[str, Any], named: list[str]) -> None:
    answer = quick_service.post("/v1/messages", body_of(**fields))
    assert answer.status_code == 200, answer.text
    assert answer.headers["x-onward-ignored"].split(",") == named


IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "x"}}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"max_tokens": None}, "max_tokens"),
        ({"temperature": 1.5}, "temperature"),
        ({"messages": []}, "messages"),
        ({"messages": [USER, {"role": "assistant", "content": "He said"}]}, "messages[1]"),
        ({"messages": [{"role": "user", "content": [CACHED, IMAGE]}]}, "messages[0].content[1]"),
        (
            {"messages": [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "x", "content": "y"}]}]},
            "messages[0].content[0].tool_use_id",
        ),
        ({"tools": [{"type": "bash_20250124", "name": "bash"}]}, "tools[0].type"),
        ({"tools": [{**WEATHER, "name": "a b"}]}, "tools[0].name"),
        ({"tools": [{**WEATHER, "input_schema": {"type": "array"}}]}, "tools[0].input_schema.type"),
        ({"stop_sequences": [""]}, "stop_sequences"),
        ({"tool_choice": {"type": "tool"}}, "tool_choice.name"),
        ({"output_config": {"format": {"type": "json_schema", "name": "x"}}}, "output_config.format"),
    ],
)
def test_what_is_wrong_is_named(quick_service: Service, fields: dict[str, Any], param: str) -> None:
    assert refused(quick_service, **fields)["param"] == param


DEVICE, ACCOUNT = "5dd07c33da27e6d2" * 4, "aaaaaaaa-bbbb-4ccc-8ddd-eeeeeeeeeeee"
SESSION = "d2e70091-3007-41a3-a916-cb8b0d3098de"
USER_ID = f"user_{DEVICE}_account_{ACCOUNT}"


def in_json(account: str) -> str:
    return json.dumps({"device_id": DEVICE, "account_uuid": account, "session_id": SESSION})


@pytest.mark.parametrize(
    ("user_id", "user"),
    [
        (f"{USER_ID}_session_{SESSION}", USER_ID),
        (in_json(ACCOUNT), USER_ID),
        (f"user_{DEVICE}_account__session_{SESSION}", f"user_{DEVICE}_account_"),
        (in_json(""), f"user_{DEVICE}_account_"),
    ],
)
def test_claude_codes_user_is_no_other_in_each_session(service: Service, user_id: str, user: str) -> None:
    answer = service.post("/v1/messages", body_of(metadata={"user_id": user_id}))
    turn = service.turn(answer.headers["x-onward-inference-id"])
    named = service.post("/v1/messages", body_of(metadata={"user_id": user}))
    other = service.turn(named.headers["x-onward-inference-id"])
    assert (turn.session_id, turn.user_id) == (SESSION, other.user_id)
    assert other.session_id != SESSION


@pytest.mark.parametrize(
    "user_id",
    [
        f"user_x_y_account__session_{SESSION}",
        f"my_session_{SESSION}",
        f"{USER_ID}_session_1",
        f"{USER_ID}_session_{SESSION}\n",
        '{"device_id": "a", "session_id": "b"}',
        json.dumps({"device_id": "a_b", "account_uuid": "", "session_id": SESSION}),
        "{",
        "{" * 5000,
        "",
    ],
)
def test_what_others_call_their_users_stays_whole(user_id: str) -> None:
    assert user_and_session(user_id) == (user_id, None)


class Unpassed(dict[str, str]):
    """Places of which nobody may pass all: a client sends as many as it likes."""

    def __iter__(self) -> Any:
        raise AssertionError("all places were passed")


@pytest.mark.parametrize(
    ("param", "theirs"),
    [
        ("messages[3].content[1].text", "input[7].text"),
        ("messages[3].content[1]", "input[7]"),
        ("messages[3].name", "input[2].name"),
        ("messages[30]", "messages[30]"),
        ("messages", "input"),
        ("message", "message"),
    ],
)
def test_the_innermost_place_names_a_field(param: str, theirs: str) -> None:
    places = Unpassed({"messages[3].content[1]": "input[7]", "messages[3]": "input[2]"})
    if param == "messages":
        places["messages"] = "input"
    error = renamed(InvalidRequest(f"{param}: wrong", param=param), places)
    assert (error.param, error.message) == (theirs, f"{theirs}: wrong")
