"""Rate limits answer in OpenAI's form, and clients learn when to try again."""

import time
from collections.abc import Callable
from typing import Any

import openai
import pytest
from api_harness import MODEL, Service, wait_for

from api.access.identity import KeyRing
from core.errors import ConfigError
from core.settings import ApiSettings, load_settings

MakeService = Callable[..., Service]
ADA, BOB, EVE = ({"authorization": f"Bearer key-of-{name}"} for name in ("ada", "bob", "eve"))
KEYS = (
    {"key": "key-of-ada", "namespace": "acme", "requests_per_minute": 2},
    {"key": "key-of-bob", "namespace": "acme", "scopes": ("chat", "feedback", "read")},
    {"key": "key-of-eve", "namespace": "other", "scopes": ("chat", "read")},
)
LIMIT = ("x-ratelimit-limit-requests", "x-ratelimit-remaining-requests", "x-ratelimit-reset-requests")


def limits(answer: Any) -> list[str]:
    return [answer.headers[name] for name in LIMIT]


@pytest.fixture
def service(make_service: MakeService) -> Service:
    return make_service(keys=KEYS, namespaces={"acme": {"requests_per_minute": 3, "burst": 5}})


def test_a_key_gets_its_burst_and_then_429(service: Service) -> None:
    began_s = time.monotonic()
    first = service.chat("hi", headers=ADA)
    second = service.chat("hi", headers=ADA, stream=True)
    assert (first.status_code, second.status_code) == (200, 200)
    assert [limits(first)[:2], limits(second)[:2]] == [["2", "1"], ["2", "0"]]
    refused = service.chat("hi", headers=ADA)
    passed_s = time.monotonic() - began_s + 1  # in which tokens came back, however long it was
    assert limits(second)[2] == "1m0s" or 60 - passed_s < float(limits(second)[2].removesuffix("s")) <= 60
    assert refused.status_code == 429
    assert refused.json()["error"] == {
        "message": refused.json()["error"]["message"],
        "type": "rate_limit_error",
        "param": None,
        "code": "rate_limit_exceeded",
    }
    assert "2 requests per minute of this API key; try again in" in refused.json()["error"]["message"]
    assert 30 - passed_s < int(refused.headers["retry-after"]) <= 30
    assert 30 - passed_s < int(refused.headers["retry-after-ms"]) / 1000 <= 30
    assert limits(refused)[:2] == ["2", "0"]


def test_all_keys_of_a_namespace_share_its_limit_and_no_others(service: Service) -> None:
    began_s = time.monotonic()
    assert [service.chat("hi", headers=ADA).status_code for _ in range(4)] == [200, 200, 429, 429]
    statuses = [service.chat("hi", headers=BOB).status_code for _ in range(4)]
    assert statuses == [200, 200, 200, 429], "what was refused by the key took nothing of the namespace's"
    refused = service.chat("hi", headers=BOB)
    assert "3 requests per minute of all API keys of this namespace" in refused.json()["error"]["message"]
    assert 20 - (time.monotonic() - began_s + 1) < int(refused.headers["retry-after"]) <= 20
    unlimited = [service.chat("hi", headers=EVE) for _ in range(8)]
    assert {answer.status_code for answer in unlimited} == {200}
    assert not any(name in answer.headers for answer in unlimited for name in LIMIT)


def test_every_route_counts_and_none_reads_the_body_first(service: Service) -> None:
    feedback = service.post("/v1/feedback", {"colour": "red"}, **BOB)
    assert (feedback.status_code, service.get("/v1/feedback/f1", **BOB).status_code) == (400, 404)
    inference_id = service.chat("hi", headers=BOB).headers["x-onward-inference-id"]
    said = {"inference_id": inference_id, "metric_name": "accepted", "value": True}
    answer = service.post("/v1/feedback", said, **BOB)
    assert (answer.status_code, limits(answer)[:2]) == (200, ["5", "1"])
    completion = service.post("/v1/completions", {"model": MODEL, "prompt": "x"}, **BOB)
    assert limits(completion)[:2] == ["5", "0"]
    for path in ("/v1/chat/completions", "/v1/completions", "/v1/feedback"):
        broken = service.http.post(path, content=b"[" * 3_000_000, headers=BOB)
        assert broken.status_code == 429, path
    assert service.get("/v1/feedback/f1", **BOB).status_code == 429
    assert service.delete("/v1/feedback/f1", **BOB).status_code == 429
    assert service.get("/v1/status", **BOB).status_code == 200, "looking is free"


def test_who_may_not_ask_takes_nothing(service: Service) -> None:
    for headers in ({}, {"authorization": "Bearer key-of-nobody"}):
        assert service.chat("hi", headers=headers).status_code == 401
    assert service.post("/v1/feedback", {}, **EVE).status_code == 403
    minute = service.get("/v1/status", **EVE).json()["last_minute"]
    assert minute == {"requests": 0, "turns": 0, "errors": 0, "complete": True}


def test_the_official_client_waits_as_long_as_it_is_told(make_service: MakeService) -> None:
    service = make_service(keys=[{**KEYS[0], "requests_per_minute": 60, "burst": 1}])
    client = service.client(api_key="key-of-ada", max_retries=1)  # told nothing, it tries again after half a second
    started = time.monotonic()
    for _ in range(2):
        client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": "hi"}])
    assert time.monotonic() - started > 0.95
    impatient = service.client(api_key="key-of-ada", max_retries=0)

    def ask() -> None:
        for _ in range(20):  # the first may come a second after the last, and is served
            impatient.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": "hi"}])

    with pytest.raises(openai.RateLimitError, match="60 requests per minute"):
        ask()


def test_keyless_requests_are_limited_by_their_namespace(make_service: MakeService) -> None:
    service = make_service(namespaces={"default": {"requests_per_minute": 1}})
    assert [service.chat("hi").status_code for _ in range(2)] == [200, 429]


def test_each_namespace_sees_its_own_minute(service: Service) -> None:
    service.chat("hi", headers=EVE)
    service.chat("hi", headers=EVE, functions=[{}])
    service.policy.scripts.clear()
    for _ in range(3):
        service.chat("hi", headers=ADA)
    expected = {
        "key-of-eve": {"requests": 2, "turns": 1, "errors": 1, "complete": True},
        "key-of-bob": {"requests": 3, "turns": 2, "errors": 1, "complete": True},
    }
    for key, minute in expected.items():
        shown = wait_for(lambda k=key: service.get("/v1/status", authorization=f"Bearer {k}").json()["last_minute"])
        assert shown == minute


@pytest.mark.parametrize(
    ("fields", "setting"),
    [
        ({"keys": KEYS, "namespaces": {"acmee": {"requests_per_minute": 1}}}, "api.namespaces.acmee"),
        ({"namespaces": {"acme": {"requests_per_minute": 1}}}, "api.namespaces.acme"),
    ],
)
def test_a_limit_of_nobody_names_the_setting(fields: dict[str, Any], setting: str) -> None:
    with pytest.raises(ConfigError, match=setting):
        KeyRing(ApiSettings(**fields))


@pytest.mark.parametrize(
    "value",
    [
        "{ burst = 3 }",
        "{ requests_per_minute = 0 }",
        "{ requests_per_minute = inf }",
        "{ requests_per_minute = 1, burst = 0 }",
        "{ requests_per_minute = 1, burst = 18446744073709551616 }",
    ],
)
def test_a_limit_that_is_none_names_the_setting(value: str) -> None:
    with pytest.raises(ConfigError, match=r"api\.namespaces\.acme"):
        load_settings(None, {"ONWARD_API__NAMESPACES": f"{{ acme = {value} }}"})


def test_a_user_may_say_so_much(make_service: MakeService) -> None:
    """The limit counts by the user that the feedback names, else by the turn's user, else by its session."""
    service = make_service(feedback={"user_per_minute": 2})
    said = {"metric_name": "accepted", "value": True}
    turns = {user: service.chat("hi", user=user).headers["x-onward-inference-id"] for user in ("ada", "bob")}
    alone = service.chat("on my own").headers["x-onward-inference-id"]
    fields = [
        {"inference_id": turns["ada"]},
        {"inference_id": turns["bob"], "user": "ada"},
        {"inference_id": turns["ada"], "user": "ada"},
        {"inference_id": turns["bob"]},
        {"inference_id": turns["bob"]},
        {"inference_id": turns["bob"]},
        *[{"inference_id": alone}] * 3,
    ]
    answers = [service.post("/v1/feedback", {**said, **about}) for about in fields]
    assert [answer.status_code for answer in answers] == [200, 200, 429] * 3
    assert "2 requests per minute of feedback of this user" in answers[2].json()["error"]["message"]
    assert 0 < int(answers[2].headers["retry-after"]) <= 30
    heard = wait_for(lambda: len(service.outcomes()) == 6 and service.outcomes())
    users = [outcome.user_id for outcome in heard]
    assert users.count(None) == 5, "of what the feedback itself says"
