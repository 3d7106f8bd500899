"""Requests of low priority are known by header or service tier, and never take the last places."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from api_harness import MODEL, Service, wait_for
from scripted_policy import says

from api.access.low_priority import LowPlaces
from core.errors import InvalidRequest, Overloaded
from core.settings import LowPrioritySettings

MakeService = Callable[..., Service]
LOW = {"x-onward-priority": "low"}
USER = {"role": "user", "content": "hi"}


@pytest.mark.parametrize(
    ("headers", "body", "expected"),
    [
        ({}, {}, "normal"),
        (LOW, {}, "low"),
        ({}, {"service_tier": "flex"}, "low"),
        ({"x-onward-priority": "normal"}, {"service_tier": "flex"}, "low"),
        ({}, {"service_tier": "priority"}, "normal"),
    ],
)
def test_a_request_can_lower_itself(
    make_service: MakeService, headers: dict[str, str], body: dict[str, Any], expected: str
) -> None:
    service = make_service()
    answer = service.http.post(
        "/v1/chat/completions", json={"model": MODEL, "messages": [USER], **body}, headers=headers
    )
    assert answer.status_code == 200
    assert [asked.priority for asked in service.policy.requests] == [expected]
    turn = service.turn(answer.headers["x-onward-inference-id"])
    assert turn.priority == expected
    assert ("x-onward-ignored" in answer.headers) == (body.get("service_tier") == "priority")


def test_responses_and_suggestions_have_it_too(make_service: MakeService) -> None:
    service = make_service()
    flex = service.post("/v1/responses", {"model": MODEL, "input": "hi", "service_tier": "flex"})
    assert flex.json()["service_tier"] == "flex"
    assert service.get(f"/v1/responses/{flex.json()['id']}").json()["service_tier"] == "flex"
    assert service.http.post("/v1/completions", json={"model": MODEL, "prompt": "a"}, headers=LOW).status_code == 200
    assert [asked.priority for asked in service.policy.requests] == ["low", "low"]


def test_another_word_is_refused_by_name(make_service: MakeService) -> None:
    refused = make_service().chat("hi", headers={"x-onward-priority": "highest"})
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == "x-onward-priority"


def test_beyond_its_places_low_priority_is_told_to_come_back_and_others_are_answered(make_service: MakeService) -> None:
    service = make_service(low_priority={"at_once": 2, "retry_after_s": 7})
    gate = threading.Event()
    service.policy.scripts.extend(says("hello", gate=gate) for _ in range(2))
    with ThreadPoolExecutor() as pool:
        running = [pool.submit(service.chat, "hi", headers=LOW) for _ in range(2)]
        wait_for(lambda: service.policy.running == 2)
        refused = service.chat("hi", headers=LOW)
        assert refused.status_code == 503
        assert refused.headers["retry-after"] == "7"
        assert "as many answers of low priority are under way as may be" in refused.json()["error"]["message"]
        assert service.chat("hi").status_code == 200
        gate.set()
        assert [each.result().status_code for each in running] == [200, 200]
    assert service.chat("hi", headers=LOW).status_code == 200, "the places are free again"


def test_each_choice_takes_a_place(make_service: MakeService) -> None:
    service = make_service(low_priority={"at_once": 2})
    body = {"model": MODEL, "messages": [USER]}
    answers = [service.http.post("/v1/chat/completions", json=body | {"n": n}, headers=LOW) for n in (3, 2)]
    assert [answer.status_code for answer in answers] == [400, 200]
    assert answers[0].json()["error"]["param"] == "n", "it would be told to come back for ever"


def test_when_to_come_back_follows_from_how_long_places_are_held(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 0.0
    monkeypatch.setattr("api.access.low_priority.time.monotonic", lambda: now_s)
    places = LowPlaces(LowPrioritySettings(at_once=2, retry_after_s=3))

    def told() -> str:
        with pytest.raises(Overloaded) as refused, places.take(1):
            pass
        return refused.value.headers["retry-after"]

    with places.take(2):
        assert told() == "3", "nothing is known yet"
        now_s = 40.0
    with places.take(2):
        assert told() == "20", "of two places one is free every 20 s"
        now_s = 41.0
    with places.take(2):
        assert told() == "19", "what came of late counts a little"


def test_one_key_leaves_places_to_others() -> None:
    places = LowPlaces(LowPrioritySettings(at_once=4))
    with places.take(3, "hers"):
        with pytest.raises(Overloaded, match="of this key"), places.take(1, "hers"):
            pass
        with places.take(1, "his"), pytest.raises(Overloaded), places.take(1, "theirs"):
            pass
    with pytest.raises(InvalidRequest, match="more than the 3 places"), places.take(4, "hers"):
        pass
    with places.take(4), pytest.raises(Overloaded), places.take(1):
        pass  # without keys nobody is told from anybody else


def test_places_are_of_the_key_that_asked(make_service: MakeService) -> None:
    keys = [{"key": f"key-of-{name}", "namespace": "acme", "name": name} for name in ("ada", "bob")]
    service = make_service(low_priority={"at_once": 4}, keys=keys)
    ada, bob = ({"authorization": f"Bearer key-of-{name}", **LOW} for name in ("ada", "bob"))
    body, gate = {"model": MODEL, "messages": [USER], "n": 3}, threading.Event()
    service.policy.scripts.extend(says("hello", gate=gate) for _ in range(3))
    with ThreadPoolExecutor() as pool:
        running = pool.submit(service.http.post, "/v1/chat/completions", json=body, headers=ada)
        wait_for(lambda: service.policy.running == 3)
        told = [service.chat("hi", headers=who).status_code for who in (ada, bob)]
        gate.set()
        assert running.result().status_code == 200
    assert told == [503, 200]


def test_low_priority_leaves_half_of_a_limit_to_others(make_service: MakeService) -> None:
    service = make_service(
        keys=({"key": "key-of-ada", "namespace": "acme", "requests_per_minute": 1, "burst": 6},),
    )
    ada = {"authorization": "Bearer key-of-ada"}
    assert [service.chat("hi", headers=ada | LOW).status_code for _ in range(4)] == [200, 200, 200, 429]
    assert [service.chat("hi", headers=ada).status_code for _ in range(4)] == [200, 200, 200, 429]
