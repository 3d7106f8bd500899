"""Feedback on an answer that its client is still being sent."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from api_harness import MODEL, WAIT_S, Service, serve, serve_replicas, wait_for
from onward_client import Onward, inference_id_of
from own_redis import own_redis
from scripted_policy import says

from core.events import Outcome

HI = [{"role": "user", "content": "hi"}]
UNKNOWN = "0192f0c1-2345-7890-abcd-0123456789ab"
ADA, BOB = ({"authorization": f"Bearer key-of-{name}-alone"} for name in ("ada", "bob"))
KEYS = [
    {"namespace": "ours", "key": "key-of-ada-alone", "user": "ada", "scopes": ["chat", "feedback"]},
    {"namespace": "ours", "key": "key-of-bob-alone", "user": "bob", "scopes": ["chat", "feedback"]},
    {"namespace": "ours", "key": "key-of-the-team", "scopes": ["chat", "feedback"]},
]
PROTOCOLS: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": HI},
    "/v1/completions": {"prompt": "hi"},
    "/v1/messages": {"messages": HI, "max_tokens": 99},
    "/v1/responses": {"input": "hi"},
}


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with serve(tmp_path_factory.mktemp("streaming") / "service") as service:
        yield service


def told(service: Service, inference_id: str, count: int = 1) -> list[Outcome]:
    """Return what the store has been told of a turn, once it is so much."""

    def find() -> list[Outcome] | None:
        found = [outcome for outcome in service.outcomes() if outcome.inference_id == inference_id]
        return found if len(found) >= count else None

    return list(wait_for(find, f"{count} outcomes"))


def say(service: Service, headers: dict[str, str] | None = None, **fields: Any) -> httpx.Response:
    return service.post("/v1/feedback", {"metric_name": "accepted", "value": True, **fields}, **(headers or {}))


@contextmanager
def streaming(
    service: Service, path: str = "/v1/chat/completions", headers: dict[str, str] | None = None, **fields: Any
) -> Iterator[Any]:
    """Yield the first event of a stream that goes on only after the context."""
    gate = threading.Event()
    if not service.policy.scripts:
        service.policy.scripts.append(says("hello"))
    service.policy.scripts[-1].gate = gate
    body = {"model": MODEL, "stream": True, **PROTOCOLS[path], **fields}
    with service.http.stream("POST", path, json=body, headers=headers) as answer:
        lines = answer.iter_lines()
        try:
            data = next(line for line in lines if line.startswith("data: "))
            yield {**json.loads(data.removeprefix("data: ")), "headers": answer.headers}
            assert service.policy.running == 1, "it had ended before the feedback"
        finally:
            gate.set()
        list(lines)


def own_id(event: Any) -> str:
    """Return the id of the answer, as its protocol writes it."""
    return str(next(held["id"] for held in (event.get("message"), event.get("response"), event) if held))


@pytest.mark.parametrize("store", [True, False])
@pytest.mark.parametrize("path", list(PROTOCOLS))
def test_it_is_taken_by_the_id_of_the_first_event(service: Service, path: str, store: bool) -> None:
    with streaming(service, path, headers={"x-onward-store": str(store).lower()}) as event:
        feedback = {"inference_id": own_id(event), "feedback_id": f"of-{own_id(event)}"}
        answers = [say(service, **feedback) for _ in range(2)]
    assert [(answer.status_code, answer.json()["status"]) for answer in answers] == [(200, "recorded")] * 2
    turn = service.turn(event["headers"]["x-onward-inference-id"])
    (outcome,) = told(service, turn.inference_id)
    assert (outcome.outcome_id, turn.unstored is None) == (feedback["feedback_id"], store)
    assert say(service, **feedback, value=False).status_code == 409


def test_a_client_says_it_of_a_chunk(service: Service) -> None:
    service.policy.scripts.append(says("hello", gate=threading.Event()))
    chunks = service.client().chat.completions.create(model=MODEL, messages=HI, stream=True)  # type: ignore[call-overload]
    first = next(chunks)
    with Onward(service.url) as onward:
        onward.feedback(first, "accepted", True)
        assert (onward.flush(WAIT_S), onward.refused()) == (0, [])
    assert service.policy.running == 1
    service.policy.scripts.clear()
    chunks.close()
    assert len(told(service, inference_id_of(first))) == 1


def test_what_is_about_a_part_of_it_waits_for_its_end(service: Service) -> None:
    with streaming(service) as event:
        named = {"inference_id": own_id(event)}
        ranged = say(service, **named, target_range={"start": 0, "end": 2})
        assert (ranged.status_code, ranged.json()["status"]) == (202, "pending")
        measured = {**named, "metric_name": "edited", "final_text": "hello"}
        early = service.post("/v1/feedback", measured)
        assert (early.status_code, early.headers["retry-after"]) == (503, "1")
        assert "has not ended" in early.json()["error"]["message"]
    service.turn(event["headers"]["x-onward-inference-id"])
    assert service.post("/v1/feedback", measured).status_code == 200
    both = told(service, event["headers"]["x-onward-inference-id"], 2)
    assert {outcome.name: outcome.value for outcome in both} == {"accepted": True, "edited": 1.0}


def test_it_is_taken_of_an_answer_that_fails_or_that_nobody_waits_for(service: Service) -> None:
    service.policy.scripts.append(says("hello", fails_at=2))
    with streaming(service) as event:
        assert say(service, inference_id=own_id(event)).status_code == 200
    turn = service.turn(event["headers"]["x-onward-inference-id"])
    assert (turn.finish_reason, len(told(service, turn.inference_id))) == ("error", 1)


def test_a_key_of_a_user_judges_its_own_and_learns_of_no_other(make_service: Callable[..., Service]) -> None:
    service = make_service(keys=KEYS)
    with streaming(service, headers=ADA, session_id="of-ada") as event:
        named = {"inference_id": event["headers"]["x-onward-inference-id"]}
        session = {"session_id": "of-ada", "metric_name": "shipped"}
        assert say(service, BOB, **session).status_code == 404
        assert service.post("/v1/sessions/of-ada/end", {}, **BOB).status_code == 404
        assert say(service, ADA, **session).status_code == 200
        assert say(service, ADA, **named).status_code == 200
        hidden = [say(service, BOB, **named, **part) for part in ({}, {"target_range": {"start": 0, "end": 1}})]
        unknown = say(service, BOB, inference_id=UNKNOWN)
    with streaming(service, headers={"authorization": "Bearer key-of-the-team"}) as event:  # which is no user's
        named = {"inference_id": event["headers"]["x-onward-inference-id"]}
        hidden.append(say(service, ADA, **named))
        ended = {**named, "metric_name": "edited", "final_text": "hello"}
        hidden.append(service.post("/v1/feedback", ended, **ADA))
    for answer in hidden:
        said = answer.text.replace(answer.json()["error"]["message"].rpartition(" ")[2], UNKNOWN)
        assert (answer.status_code, said) == (404, unknown.text)


def test_another_replica_knows_of_it(tmp_path: Path) -> None:
    with (
        own_redis(tmp_path / "redis") as server,
        serve_replicas(tmp_path / "service", 2, live_states=server.live_states(), keys=KEYS) as (one, two),
        streaming(one, headers=ADA) as event,
    ):
        assert [say(two, user, inference_id=own_id(event)).status_code for user in (ADA, BOB)] == [200, 404]
