"""`store: false` stores the lengths of texts but no text, and the turn's outcomes still count."""

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
import redis
from api_harness import MODEL, WAIT_S, Service, serve_replicas, wait_for
from at_rest import forms_of, where_at_rest
from byte_renderer import END, call_ids, ids
from exports import Program
from own_redis import own_redis
from scripted_policy import Script, says

from core import telemetry
from core.events import Completion

CANARY = 'the "canary" sang\n at dawn'
FORMS = forms_of(CANARY, ids(CANARY))
TOOL = {
    "type": "function",
    "function": {"name": "sing", "description": CANARY, "parameters": {"type": "object", "properties": {}}},
}
Said = dict[str, Any]


def user(text: str) -> Said:
    return {"role": "user", "content": text}


def assistant(text: str) -> Said:
    return {"role": "assistant", "content": text}


def chat(service: Service, **fields: Any) -> httpx.Response:
    answer = service.chat(f"say: {CANARY}", metadata={"note": "canary " + CANARY}, stop=[CANARY], **fields)
    assert answer.status_code == 200, answer.text
    return answer


def complete(service: Service, **fields: Any) -> httpx.Response:
    body = {"model": MODEL, "prompt": CANARY, "suffix": CANARY, **fields}
    answer = service.post("/v1/completions", body)
    assert answer.status_code == 200, answer.text
    return answer


def call_a_tool(service: Service, **fields: Any) -> None:
    service.policy.scripts.append(Script((*call_ids("sing", {"words": CANARY}), END)))
    result = {"role": "tool", "tool_call_id": "call_1", "content": CANARY}
    made = {"id": "call_1", "type": "function", "function": {"name": "sing", "arguments": json.dumps({"w": CANARY})}}
    answer = service.chat(user("sing"), {"role": "assistant", "content": None, "tool_calls": [made]}, result,
                          tools=[TOOL], **fields)  # fmt: skip
    assert answer.json()["choices"][0]["message"]["tool_calls"], answer.text


def fail(service: Service, **fields: Any) -> None:
    service.policy.scripts.append(says(CANARY, fails_at=5))
    service.policy.scripts.append(says(CANARY, fails_at=5))
    assert service.chat(CANARY, **fields).status_code == 503
    assert service.chat(CANARY, temperature=CANARY, **fields).status_code == 400


def hang_up(service: Service, **fields: Any) -> None:
    service.policy.scripts.append(says(CANARY, gate=threading.Event()))
    service.policy.closed.clear()
    body = {"model": MODEL, "messages": [user(CANARY)], "stream": True, **fields}
    with service.http.stream("POST", "/v1/chat/completions", json=body) as answer:
        next(answer.iter_bytes())
    assert service.policy.closed.wait(WAIT_S)


def say_all(service: Service, **fields: Any) -> None:
    """Send requests with every possible ending."""
    service.policy.default = says(CANARY)
    chat(service, **fields)
    chat(service, stream=True, **fields)
    chat(service, n=2, logprobs=True, top_logprobs=1, **fields)
    complete(service, **fields)
    complete(service, stream=True, **fields)
    call_a_tool(service, **fields)
    fail(service, **fields)
    hang_up(service, **fields)


TURNS = 10  # of `say_all`; the one that fails fails twice


def settled(service: Service) -> list[Completion]:
    wait_for(lambda: len(service.all_turns()) >= TURNS, "all turns in the store")
    return service.all_turns()


@pytest.mark.parametrize(("fields", "rests"), [({"store": False}, False), ({}, True)], ids=["not stored", "stored"])
def test_what_was_said_rests_only_where_it_may(
    service: Service, tmp_path: Path, capfd: pytest.CaptureFixture[str], fields: Said, rests: bool
) -> None:
    say_all(service, **fields)
    turns = settled(service)
    assert len(turns) == TURNS
    found = where_at_rest(tmp_path, FORMS)
    assert bool(found) is rests, found
    captured = capfd.readouterr()
    assert CANARY not in captured.out + captured.err
    assert bool(service.live_state._chains._weight) is rests  # the only part of it that holds tokens


def test_counts_times_ids_and_versions_rest(service: Service) -> None:
    before = telemetry.UNTRAINABLE_TURNS.labels("not_stored")._value.get()
    answer = chat(service, store=False, user="ada").json()
    turn = service.turn(answer["onward"]["inference_id"])
    assert answer["onward"]["trainable"] is False
    assert (turn.finish_reason, turn.trainable, turn.learn) == ("stop", False, False)
    assert turn.untrainable_reasons == ("not_stored",)
    assert (turn.num_prompt_tokens, turn.num_output_tokens) == (
        answer["usage"]["prompt_tokens"],
        answer["usage"]["completion_tokens"],
    )
    assert turn.num_characters == len(answer["choices"][0]["message"]["content"])
    assert turn.policy_versions
    assert turn.user_id is not None
    assert telemetry.UNTRAINABLE_TURNS.labels("not_stored")._value.get() == before + 1


def test_look_ups_say_that_it_was_not_stored(service: Service) -> None:
    first = chat(service, store=False).json()["onward"]
    service.turn(first["inference_id"])
    (turn,) = service.get(f"/v1/sessions/{first['session_id']}").json()["turns"]
    assert (turn["stored"], turn["text"], turn["completion_tokens"]) == (False, "", 6)
    story = service.get(f"/v1/turns/{first['inference_id']}").json()
    assert (story["stored"], story["messages"], story["tokens"], story["text"]) == (False, [], [], "")
    assert service.get(f"/v1/rewards/{first['inference_id']}").json()["stored"] is False
    second = service.chat("hello").json()["onward"]
    service.turn(second["inference_id"])
    assert service.get(f"/v1/turns/{second['inference_id']}").json()["stored"] is True


def test_feedback_is_taken_and_what_needs_its_words_is_refused_by_name(service: Service) -> None:
    inference_id = chat(service, store=False).json()["onward"]["inference_id"]
    turn = service.turn(inference_id)
    said = {"inference_id": inference_id, "metric_name": "accepted", "value": True}
    assert service.post("/v1/feedback", said).status_code == 200
    within = {**said, "target_range": {"start": 0, "end": turn.num_output_tokens}}
    assert service.post("/v1/feedback", within).status_code == 200
    beyond = {**said, "target_range": {"start": 0, "end": turn.num_output_tokens + 1}}
    assert service.post("/v1/feedback", beyond).status_code == 400
    edited = {"inference_id": inference_id, "metric_name": "edited", "final_text": "x"}
    answer = service.post("/v1/feedback", edited)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "inference_id")
    assert "not stored" in answer.json()["error"]["message"]


def test_feedback_names_a_call_of_it(service: Service) -> None:
    service.policy.scripts.append(Script((*call_ids("sing", {"words": CANARY}), END)))
    answer = service.chat("sing", tools=[TOOL], store=False).json()
    inference_id = answer["onward"]["inference_id"]
    call_id = answer["choices"][0]["message"]["tool_calls"][0]["id"]
    (call,) = service.turn(inference_id).tool_calls
    assert (call.id, call.name, call.arguments) == (call_id, "", "")
    said = {"inference_id": inference_id, "metric_name": "accepted", "value": True, "tool_call_id": call_id}
    assert service.post("/v1/feedback", said).status_code == 200


@pytest.mark.parametrize("forgets", [False, True], ids=["live state", "store"])
def test_a_later_turn_continues_what_is_known(service: Service, forgets: bool) -> None:
    """The second of three turns is not stored: the third continues the first, and records the gap."""
    service.policy.scripts += [says("one"), says("two"), says("three")]
    first = service.turn(service.chat("a").json()["onward"]["inference_id"])
    said = [user("a"), assistant("one"), user("b")]
    second = service.turn(service.chat(*said, store=False).json()["onward"]["inference_id"])
    if forgets:
        service.live_state.forget()
    said += [assistant("two"), user("c")]
    third = service.turn(service.chat(*said).json()["onward"]["inference_id"])
    assert (second.session_id, second.parent_id, second.turn_index) == (first.session_id, first.inference_id, 1)
    assert (third.session_id, third.parent_id, third.turn_index) == (first.session_id, first.inference_id, 2)
    assert third.messages[3]["content"] == "two"  # its own prompt is its own to keep
    assert bytes(t for t in third.prompt_token_ids if t < 256).count(b"two") == 1


def test_a_turn_after_a_root_that_was_not_stored_is_a_root(service: Service) -> None:
    service.policy.scripts += [says("one"), says("two")]
    service.chat("a", store=False)
    second = service.turn(service.chat(user("a"), assistant("one"), user("b")).json()["onward"]["inference_id"])
    assert (second.parent_id, second.turn_index) == (None, 1)


def test_the_engine_is_told_to_remember_nothing(service: Service) -> None:
    chat(service, store=False)
    service.chat("hello")
    assert [request.remember for request in service.policy.requests] == [False, True]


@pytest.mark.parametrize(("fields", "rests"), [({"store": False}, False), ({}, True)], ids=["not stored", "stored"])
def test_nothing_of_it_goes_to_redis(tmp_path: Path, fields: Said, rests: bool) -> None:
    with (
        own_redis(tmp_path / "redis") as server,
        serve_replicas(tmp_path / "service", 1, live_states=server.live_states(1)) as (made,),
    ):
        say_all(made, **fields)
        settled(made)
        with redis.Redis.from_url(server.url) as client:
            said = b"".join(key + _value(client, key) for key in client.scan_iter())
    assert said
    assert any(form in said for form in FORMS.values()) is rests


def _value(client: redis.Redis, key: bytes) -> bytes:
    match client.type(key):
        case b"string":
            return bytes(client.get(key) or b"")  # type: ignore[arg-type]
        case b"hash":
            return b"".join(name + value for name, value in client.hgetall(key).items())  # type: ignore[union-attr]
        case other:
            pytest.fail(f"{key!r} is a {other!r}: to be looked into, too")


def test_a_key_that_sees_only_its_own_sees_it_and_what_it_exports_is_joined(
    make_service: Callable[..., Service],
) -> None:
    keys = [{"key": f"key-of-{who}", "namespace": "ours", "scopes": ("chat", "feedback")} for who in ("ada", "ben")]
    service = make_service(keys=keys)
    ada, ben = ({"authorization": f"Bearer {key['key']}"} for key in keys)
    answer = chat(service, store=False, headers=ada)
    turn = service.turn(answer.headers["x-request-id"])
    seen = service.get(f"/v1/turns/{turn.inference_id}", **ada)
    assert (seen.status_code, seen.json()["stored"]) == (200, False)
    assert service.get(f"/v1/turns/{turn.inference_id}", **ben).status_code == 404
    for who, theirs in ((ben, "of-ben"), (ada, "of-ada")):
        editor = Program(service, "copilot-chat", {"service.name": "copilot-chat"}, headers=who)
        names = {"gen_ai.response.id": theirs, "copilot_chat.server_request_id": turn.inference_id}
        editor.span("chat scripted", {"gen_ai.operation.name": "chat", **names})
        editor.send_spans()
        editor.log(event__name="copilot_chat.edit.feedback", outcome="accepted", request_id=theirs)
        editor.send_logs()
    (outcome,) = wait_for(service.outcomes)
    assert (outcome.name, outcome.inference_id, outcome.key_id) == ("accepted", turn.inference_id, turn.key_id)


def test_one_that_nobody_waited_for_is_no_measure_of_speed(service: Service) -> None:
    before = telemetry.TURN_SECONDS._sum.get(), telemetry.FIRST_TOKEN_SECONDS._sum.get()
    turn = service.turn(chat(service, store=False, service_tier="flex").json()["onward"]["inference_id"])
    assert turn.priority == "low"
    assert (telemetry.TURN_SECONDS._sum.get(), telemetry.FIRST_TOKEN_SECONDS._sum.get()) == before
    assert service.get("/v1/serving").json()["turn_s"]["p50"] is None
