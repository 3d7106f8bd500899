"""Chat completions through the official client, and their records."""

import json
import socket
import threading
from typing import Any

import httpx
import openai
import pytest
from api_harness import MODEL, WAIT_S, Service, wait_for
from byte_renderer import END, call_ids, ids
from scripted_policy import Script, logprob_of, says

from core.errors import NotFinite
from core.events import Topic
from core.ids import base_ref

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "read_file",
            "description": "Read a file",
            "parameters": {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]},
        },
    }
]


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def test_the_official_client_gets_an_answer_and_the_log_gets_the_turn(service: Service) -> None:
    service.policy.scripts.append(says("günther", versions=[3, 3, 3, 4, 4, 4, 4, 4, 4]))
    answer = service.client().chat.completions.create(
        model=MODEL, messages=[user("hi")], temperature=0.5, seed=7, max_tokens=50, user="ada", metadata={"team": "web"}
    )
    assert answer.choices[0].message.content == "günther"
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (
        len(service.policy.requests[0].prompt_token_ids),
        9,
    )
    assert answer.usage.prompt_tokens_details is not None
    assert answer.usage.prompt_tokens_details.cached_tokens == 3
    onward = answer.model_extra["onward"]  # type: ignore[index]
    assert (onward["policy_version"], onward["trainable"], onward["logged"], onward["parent_id"]) == (
        3,
        True,
        True,
        None,
    )
    assert onward["policy_versions"] == [{"start": 0, "end": 3, "version": 3}, {"start": 3, "end": 9, "version": 4}]

    turn = service.turn(onward["inference_id"])
    assert turn.session_id == onward["session_id"]
    assert turn.token_ids == (*ids("günther"), END)
    assert turn.logprobs == tuple(logprob_of(place) for place in range(9))
    assert turn.prompt_token_ids == service.policy.requests[0].prompt_token_ids
    assert turn.messages == (user("hi"),)
    assert (turn.sampling.temperature, turn.sampling.seed, turn.logprob_space.temperature) == (0.5, 7, 0.5)
    assert (turn.text, turn.finish_reason, turn.delivered_tokens, turn.tags) == ("günther", "stop", 9, {"team": "web"})
    assert turn.user_id is not None
    assert "ada" not in turn.user_id
    assert (turn.workload, turn.purpose, turn.learn, turn.session_done) == ("chat", "turn", True, False)
    assert [(s.start, s.end, s.kind) for s in turn.segments] == [(0, 9, "answer")]


def test_headers_say_what_the_body_says(service: Service) -> None:
    answer = service.chat("hi", temperature=0)
    onward = answer.json()["onward"]
    assert answer.headers["x-onward-inference-id"] == onward["inference_id"]
    assert answer.headers["x-onward-session-id"] == onward["session_id"]
    assert answer.headers["x-onward-policy-version"] == "1"
    assert answer.headers["x-onward-trainable"] == "false"
    assert answer.headers["x-onward-untrainable-reasons"] == "temperature_zero"
    turn = service.turn(onward["inference_id"])
    assert (turn.trainable, turn.untrainable_reasons) == (False, ("temperature_zero",))


def test_streaming_through_the_official_client(service: Service) -> None:
    service.policy.scripts.append(says("grüße", chunk_tokens=2))
    stream = service.client().chat.completions.create(
        model=MODEL, messages=[user("hi")], stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    deltas = [chunk.choices[0].delta for chunk in chunks if chunk.choices]
    assert deltas[0].role == "assistant"
    assert "".join(delta.content or "" for delta in deltas) == "grüße"
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1] == "stop"
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 8
    onward = chunks[-2].model_extra["onward"]  # type: ignore[index]
    assert chunks[-1].model_extra["onward"] == onward  # type: ignore[index]
    assert service.turn(onward["inference_id"]).token_ids == (*ids("grüße"), END)


def test_the_first_token_leaves_before_the_second_is_sampled(service: Service) -> None:
    gate = threading.Event()
    service.policy.scripts.append(says("abc", gate=gate))
    body = {"model": MODEL, "messages": [user("hi")], "stream": True}
    with httpx.stream("POST", f"{service.url}/v1/chat/completions", json=body, timeout=WAIT_S) as answer:
        events = (line for line in answer.iter_lines() if line)
        first = json.loads(next(events).removeprefix("data: "))
        assert first["choices"][0]["delta"] == {"role": "assistant", "content": "a"}
        assert answer.headers["x-onward-policy-version"] == "1"
        gate.set()
        rest = list(events)
    assert rest[-1] == "data: [DONE]"
    assert (
        json.loads(rest[-2].removeprefix("data: "))["onward"]["inference_id"] == answer.headers["x-onward-inference-id"]
    )


def test_the_turn_is_durable_before_the_last_chunk(service: Service) -> None:
    """The log itself is read at the moment when the final event arrives."""
    body = {"model": MODEL, "messages": [user("hi")], "stream": True}
    with httpx.stream("POST", f"{service.url}/v1/chat/completions", json=body, timeout=WAIT_S) as answer:
        for line in answer.iter_lines():
            if '"finish_reason":"stop"' in line:
                break
        consumer = service.services.log.consumer("test", [Topic.TURNS])
        records = consumer.poll(10, 1)
        consumer.close()
    assert [record.event.inference_id for record in records] == [answer.headers["x-onward-inference-id"]]  # type: ignore[union-attr]


def test_a_tool_round_trip_continues_the_very_tokens(service: Service) -> None:
    service.policy.scripts += [
        Script((*ids("Let me see. "), *call_ids("read_file", {"path": "a.py"}), END), chunk_tokens=5),
        says("It is empty."),
    ]
    client = service.client()
    first = client.chat.completions.create(model=MODEL, messages=[user("look")], tools=TOOLS)  # type: ignore[arg-type]
    message = first.choices[0].message
    assert first.choices[0].finish_reason == "tool_calls"
    assert message.content == "Let me see. "
    assert message.tool_calls is not None
    call = message.tool_calls[0]
    assert call.type == "function"
    assert (call.function.name, json.loads(call.function.arguments)) == ("read_file", {"path": "a.py"})
    result = {"role": "tool", "tool_call_id": call.id, "content": ""}
    second = client.chat.completions.create(model=MODEL, messages=[user("look"), message, result], tools=TOOLS)  # type: ignore[list-item, arg-type]

    turns = [service.turn(answer.model_extra["onward"]["inference_id"]) for answer in (first, second)]  # type: ignore[index]
    assert turns[1].parent_id == turns[0].inference_id
    assert turns[1].session_id == turns[0].session_id
    assert turns[1].turn_index == 1
    history = turns[0].prompt_token_ids + turns[0].token_ids
    assert turns[1].prompt_token_ids[: len(history)] == history
    assert [(c.name, c.id) for c in turns[0].tool_calls] == [("read_file", call.id)]
    assert [(s.start, s.end, s.kind) for s in turns[0].segments] == [
        (0, 12, "answer"),
        (12, len(turns[0].token_ids), "tool"),
    ]


def test_streamed_tool_calls(service: Service) -> None:
    service.policy.scripts.append(
        Script((*call_ids("read_file", {"path": "a"}), *call_ids("read_file", {"path": "b"}), END))
    )
    chunks = list(
        service.client().chat.completions.create(model=MODEL, messages=[user("look")], tools=TOOLS, stream=True)
    )  # type: ignore[call-overload]
    calls = [call for chunk in chunks for call in chunk.choices[0].delta.tool_calls or ()]
    assert [(call.index, json.loads(call.function.arguments)) for call in calls] == [
        (0, {"path": "a"}),
        (1, {"path": "b"}),
    ]
    assert chunks[-1].choices[0].finish_reason == "tool_calls"


def test_one_call_at_a_time_ends_the_turn_after_the_first(service: Service) -> None:
    both = (*call_ids("read_file", {"path": "a"}), *call_ids("read_file", {"path": "b"}), END)
    service.policy.scripts.append(Script(both))
    answer = service.chat("look", tools=TOOLS, parallel_tool_calls=False).json()
    assert len(answer["choices"][0]["message"]["tool_calls"]) == 1
    assert answer["choices"][0]["finish_reason"] == "tool_calls"
    assert service.turn(answer["onward"]["inference_id"]).token_ids == call_ids("read_file", {"path": "a"})


def test_without_tools_the_same_tokens_are_text(service: Service) -> None:
    service.policy.scripts += [Script((*call_ids("read_file", {}), END))] * 2
    assert "<tool_call>" in service.chat("look").json()["choices"][0]["message"]["content"]
    none = service.chat("look", tools=TOOLS, tool_choice="none").json()
    assert "tool_calls" not in none["choices"][0]["message"]


def test_a_call_that_is_cut_off_is_logged_as_broken(service: Service) -> None:
    service.policy.scripts += [Script(call_ids("read_file", {"path": "a"})[:-1])] * 2
    for tools, broken in ((TOOLS, 1), ([], 0)):
        answer = service.chat("look", **({"tools": tools} if tools else {})).json()
        assert service.turn(answer["onward"]["inference_id"]).broken_calls == broken


def test_logprobs_have_openais_shape(service: Service) -> None:
    service.policy.scripts += [says("hü", chunk_tokens=2)] * 2
    client = service.client()
    answer = client.chat.completions.create(model=MODEL, messages=[user("x")], logprobs=True, top_logprobs=2)
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.content is not None
    assert [entry.logprob for entry in logprobs.content] == [logprob_of(place) for place in range(3)]
    assert bytes(byte for entry in logprobs.content for byte in entry.bytes or ()) == "hü".encode()
    assert [top.token for top in logprobs.content[0].top_logprobs] == ["h", "i"]
    stream = client.chat.completions.create(model=MODEL, messages=[user("x")], logprobs=True, stream=True)
    streamed = [e for c in stream for e in (c.choices[0].logprobs.content or () if c.choices[0].logprobs else ())]
    assert [entry.logprob for entry in streamed] == [logprob_of(place) for place in range(3)]


@pytest.mark.parametrize("stream", [False, True])
def test_stop_strings_cut_the_text_and_not_the_tokens(service: Service, stream: bool) -> None:
    service.policy.scripts.append(says("one\nTWO\nthree", chunk_tokens=3))
    answer = service.client().chat.completions.with_raw_response.create(
        model=MODEL, messages=[user("x")], stop=["TWO", "nope"], stream=stream
    )
    parsed = answer.parse()
    text = "".join(c.choices[0].delta.content or "" for c in parsed) if stream else parsed.choices[0].message.content  # type: ignore[union-attr]
    assert text == "one\n"
    turn = service.turn(answer.headers["x-onward-inference-id"])
    assert turn.token_ids == ids("one\nTWO\nt")[: len(turn.token_ids)]
    assert len(turn.token_ids) == 9
    assert (turn.text, turn.finish_reason, turn.trainable) == ("one\n", "stop", True)
    assert service.policy.closed.wait(WAIT_S)


def test_choices_of_the_last_seed_go_on_with_the_first(service: Service) -> None:
    service.client().chat.completions.create(model=MODEL, messages=[user("x")], n=3, seed=2**63 - 1)
    assert {request.sampling.seed for request in service.policy.requests} == {2**63 - 1, -(2**63), 1 - 2**63}


def test_several_choices_share_a_group_and_differ_in_seed(service: Service) -> None:
    service.policy.scripts += [says("a"), says("b"), says("c")]
    answer = service.client().chat.completions.create(model=MODEL, messages=[user("x")], n=3, seed=5)
    infos = [choice.model_extra["onward"] for choice in answer.choices]  # type: ignore[index]
    assert sorted(choice.message.content or "" for choice in answer.choices) == ["a", "b", "c"]
    assert len({info["inference_id"] for info in infos}) == 3
    assert len({info["group_id"] for info in infos}) == 1
    turns = [service.turn(info["inference_id"]) for info in infos]
    assert len({turn.group_id for turn in turns}) == 1
    assert {request.sampling.seed for request in service.policy.requests} == {5, 6, 7}
    service.policy.scripts += [says("a"), says("b")]
    chunks = list(service.client().chat.completions.create(model=MODEL, messages=[user("x")], n=2, stream=True))
    texts = {i: "".join(c.choices[0].delta.content or "" for c in chunks if c.choices[0].index == i) for i in (0, 1)}
    assert sorted(texts.values()) == ["a", "b"]
    assert len([c for c in chunks if c.choices[0].finish_reason]) == 2


def hang_up(service: Service, body: dict[str, Any]) -> None:
    """Ask, and go while the answer is being made."""
    host, _, port = service.url.removeprefix("http://").partition(":")
    raw = json.dumps(body).encode()
    head = "POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    with socket.create_connection((host, int(port))) as client:
        client.sendall(f"{head}content-length: {len(raw)}\r\n\r\n".encode() + raw)
        wait_for(lambda: service.policy.running == 1, "the answer's beginning")


@pytest.mark.parametrize("stream", [False, True])
def test_a_hang_up_stops_generation_and_logs_the_partial_turn(service: Service, stream: bool) -> None:
    gate = threading.Event()
    service.policy.scripts.append(says("abcdef", gate=gate))
    body = {"model": MODEL, "messages": [user("hi")], "stream": stream}
    if stream:
        with httpx.stream("POST", f"{service.url}/v1/chat/completions", json=body, timeout=WAIT_S) as answer:
            next(answer.iter_lines())
    else:
        hang_up(service, body)
    assert service.policy.closed.wait(WAIT_S)
    (turn,) = wait_for(service.all_turns, "the partial turn")
    assert (turn.finish_reason, turn.token_ids, turn.text) == ("abort", ids("a"), "a")
    assert turn.delivered_tokens == (1 if stream else 0)
    assert turn.policy_versions[0].end == 1
    gate.set()
    assert service.chat("again").status_code == 200


def test_an_engine_that_fails_before_the_first_token_is_a_503(service: Service) -> None:
    service.policy.scripts += [says("abc", fails_at=0)] * 2
    for stream in (False, True):
        answer = service.chat("hi", stream=stream)
        assert answer.status_code == 503
        assert answer.json()["error"]["code"] == "unavailable"
    assert service.chat("hi").status_code == 200


def test_an_engine_that_fails_midway_tells_the_stream_and_logs_what_there_was(service: Service) -> None:
    service.policy.scripts.append(says("abc", fails_at=2))
    with pytest.raises(openai.APIError, match="the engine is gone"):
        list(service.client().chat.completions.create(model=MODEL, messages=[user("x")], stream=True))
    (turn,) = wait_for(service.all_turns, "the partial turn")
    assert (turn.finish_reason, turn.token_ids, turn.trainable) == ("error", ids("ab"), False)
    assert "error" in turn.untrainable_reasons


def test_an_engine_that_fails_midway_costs_a_whole_answer_nothing(service: Service) -> None:
    service.policy.scripts.append(says("abc", fails_at=2))
    assert service.chat("x").json()["choices"][0]["message"]["content"] == "hello"
    turns = wait_for(lambda: len(service.all_turns()) == 2 and service.all_turns(), "the partial turn, and the other")
    assert sorted((turn.finish_reason, turn.trainable) for turn in turns) == [("error", False), ("stop", True)]
    service.policy.scripts += [says("abc", fails_at=2)] * 2
    assert service.chat("x").status_code == 503


def test_numbers_that_are_not_finite_end_their_turn_alone_and_name_the_version(service: Service) -> None:
    for stream, fails_at in ((False, 0), (True, 0), (False, 2)):
        service.policy.scripts.append(says("abc", fails_at=fails_at, error=NotFinite(base_ref(1))))
        answer = service.chat("hi", stream=stream)
        assert answer.status_code == 503
        assert answer.json()["error"]["code"] == "not_finite"
    turns = wait_for(lambda: len(service.all_turns()) == 3 and service.all_turns(), "a turn for each")
    assert {turn.not_finite for turn in turns} == {base_ref(1)}
    assert sorted(len(turn.token_ids) for turn in turns) == [0, 0, 2]
    assert all(turn.finish_reason == "error" and "not_finite" in turn.untrainable_reasons for turn in turns)
    assert service.chat("hi").status_code == 200


def test_missing_logprobs_are_never_padded(service: Service) -> None:
    service.policy.scripts.append(says("abc", without_logprobs=True))
    answer = service.chat("hi").json()
    turn = service.turn(answer["onward"]["inference_id"])
    assert (turn.logprobs, turn.untrainable_reasons) == ((), ("missing_logprobs",))
    assert answer["onward"]["trainable"] is False


def test_a_log_that_takes_nothing_is_said_and_the_user_is_served(service: Service) -> None:
    service.log.broken = True
    answer = service.chat("hi")
    assert answer.status_code == 200
    assert answer.json()["onward"]["logged"] is False
    assert answer.json()["onward"]["untrainable_reasons"] == ["unlogged"]
    assert answer.headers["x-onward-trainable"] == "false"
    assert "onward_unlogged_turns_total" in service.get("/metrics").text
    service.log.broken = False
    assert service.chat("hi").json()["onward"]["logged"] is True


def test_consent_workload_and_environment_are_recorded(service: Service) -> None:
    headers = {
        "x-onward-learn": "false",
        "x-onward-workload": "review",
        "x-onward-environment": "simulated",
        "x-onward-harness": "ide 3.1",
        "x-onward-environment-image": f"sha256:{'a1' * 32}",
        "X-Turn-Type": "side",
        "X-Session-Done": "true",
    }
    turn = service.turn(service.chat("hi", headers=headers).headers["x-onward-inference-id"])
    assert (turn.learn, turn.workload, turn.environment) == (False, "review", "simulated")
    assert (turn.harness_version, turn.purpose, turn.session_done, turn.trainable) == ("ide 3.1", "side", True, True)
    assert turn.environment_image == headers["x-onward-environment-image"]
    said = service.chat("hi", store=False, metadata={"workload": "docs"}, turn_type="summary", session_done=True)
    turn = service.turn(said.headers["x-onward-inference-id"])
    assert (turn.learn, turn.workload, turn.purpose, turn.session_done) == (False, "docs", "summary", True)


def test_max_tokens_default_to_what_fits(service: Service) -> None:
    service.chat("x" * 1900)
    request = service.policy.requests[0]
    assert len(request.prompt_token_ids) + request.sampling.max_tokens == 2000
    service.policy.default = says("a" * 600)
    answer = service.chat("x").json()
    assert (answer["choices"][0]["finish_reason"], answer["usage"]["completion_tokens"]) == ("length", 512)


def test_a_long_prompt_is_rendered_off_the_event_loop(service: Service) -> None:
    service.policy.context_length = 100_000
    service.chat("x" * 10)
    service.chat("x" * 50_000)
    on_loop, off_loop = service.services.renderer.threads  # type: ignore[attr-defined]
    assert on_loop != off_loop
