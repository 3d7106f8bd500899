"""Ids may hold slashes: what they name is read, ended and withdrawn over HTTP like all else."""

from typing import Any
from urllib.parse import quote

import pytest
from api_harness import MODEL, Service, wait_for


def say(service: Service, session_id: str) -> Any:
    return service.turn(service.chat("hi", session_id=session_id).json()["onward"]["inference_id"])


@pytest.mark.parametrize("session_id", ["team/window:1", "a/b/c"])
@pytest.mark.parametrize("is_quoted", [True, False])
def test_a_session_whose_id_has_slashes(service: Service, session_id: str, is_quoted: bool) -> None:
    turn = say(service, session_id)
    path = f"/v1/sessions/{quote(session_id, safe='') if is_quoted else session_id}"
    read = service.get(path)
    assert (read.status_code, read.json()["session_id"]) == (200, session_id), read.text
    assert [each["inference_id"] for each in read.json()["turns"]] == [turn.inference_id]
    assert service.post(f"{path}/end", {}).json() == {"session_id": session_id, "status": "ended"}


def test_feedback_whose_id_has_slashes(service: Service) -> None:
    said = {"inference_id": say(service, "s").inference_id, "metric_name": "accepted", "value": True}
    assert service.post("/v1/feedback", {**said, "feedback_id": "plugin/7"}).status_code == 200
    assert service.get("/v1/feedback/plugin%2F7").json()["feedback_id"] == "plugin/7"
    assert service.delete("/v1/feedback/plugin%2F7").json()["status"] == "withdrawn"
    wait_for(lambda: service.get("/v1/feedback/plugin/7").json()["status"] == "withdrawn")


def test_sessions_whose_ids_end_as_routes_do(service: Service) -> None:
    """Where a path may be read in two ways, the route wins that the path ends in."""
    for session_id in ("a", "a/end"):
        say(service, session_id)
    assert service.post("/v1/sessions/a%2Fend", {}).json()["session_id"] == "a"
    assert service.post("/v1/sessions/a%2Fend/end", {}).json()["session_id"] == "a/end"
    assert service.get("/v1/sessions/a%2Fend").json()["session_id"] == "a/end"


def test_an_answers_id_names_its_turn_wherever_feedback_takes_it(service: Service) -> None:
    said = {"model": MODEL, "max_tokens": 3}
    for path, body in (
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}]}),
        ("/v1/completions", {"prompt": "x"}),
        ("/v1/messages", {"messages": [{"role": "user", "content": "hi"}]}),
        ("/v1/responses", {"input": "hi", "max_tokens": None}),
    ):
        answer = service.post(path, {name: value for name, value in {**said, **body}.items() if value is not None})
        inference = answer.headers["x-onward-inference-id"]
        service.turn(inference)
        for name in (answer.json()["id"], inference.upper()):
            assert service.post(
                "/v1/feedback", {"inference_id": name, "metric_name": "accepted", "value": True}
            ).is_success
            for route in ("turns", "rewards"):
                found = service.get(f"/v1/{route}/{name}")
                assert (found.status_code, found.json().get("inference_id")) == (200, inference), (route, name)
