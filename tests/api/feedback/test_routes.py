"""Keys and tenants, policies, rewards, health, and the OpenAPI document of all of it."""

from collections.abc import Callable, Iterator
from datetime import timedelta
from itertools import pairwise
from typing import Any

import httpx
import made_events
import openai
import pytest
from api_harness import MODEL, WAIT_S, Service, wait_for
from reward_stream import NOW, events, put

from api.access.identity import KeyRing
from core.errors import ConfigError
from core.events import Release
from core.ids import base_ref
from core.operations.fleet import Experiment
from core.settings import ApiKey, ApiSettings

KEYS = (
    ApiKey(key="key-of-ada", namespace="ada", scopes=("chat", "feedback")),
    ApiKey(key="key-of-bob", namespace="bob", scopes=("chat", "feedback", "admin")),
    ApiKey(key="key-to-read", namespace="ada", scopes=("feedback",)),
)
MakeService = Callable[..., Service]


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


def test_strangers_are_kept_out(make_service: MakeService) -> None:
    service = make_service(keys=KEYS)
    with pytest.raises(openai.AuthenticationError):
        service.client(api_key="wrong").chat.completions.create(model=MODEL, messages=[])
    assert service.chat("hi").status_code == 401
    for path in ("/v1/models", "/v1/policies", "/v1/rewards", "/v1/sessions/s", "/v1/feedback/f"):
        assert service.get(path).status_code == 401, path
    assert service.chat("hi", headers=bearer("key-of-ada")).status_code == 200
    denied = service.chat("hi", headers=bearer("key-to-read"))
    assert (denied.status_code, denied.json()["error"]["type"]) == (403, "permission_error")
    assert service.post("/v1/policies/1/rollback", {"why": "x"}, **bearer("key-of-ada")).status_code == 403


def test_another_tenants_ids_are_unknown(make_service: MakeService) -> None:
    service = make_service(keys=KEYS)
    ada, bob = bearer("key-of-ada"), bearer("key-of-bob")
    turn = service.chat("hi", headers=ada, session_id="s1", user="eve")
    inference_id = turn.headers["x-onward-inference-id"]
    recorded = service.turn(inference_id)
    assert recorded.namespace == "ada"
    said = {"inference_id": inference_id, "metric_name": "accepted", "value": True, "feedback_id": "f1"}
    assert service.post("/v1/feedback", said, **bob).status_code == 404
    assert service.post("/v1/feedback", {**said, "inference_id": None, "session_id": "s1"}, **bob).status_code == 404
    assert service.post("/v1/feedback", said, **ada).status_code == 200
    for path in ("/v1/feedback/f1", "/v1/sessions/s1"):
        assert service.get(path, **bob).status_code == 404
        assert service.get(path, **ada).status_code == 200
    assert service.delete("/v1/feedback/f1", **bob).status_code == 404
    assert service.post("/v1/sessions/s1/end", {}, **bob).status_code == 404
    follow = [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": "hello"},
        {"role": "user", "content": "x"},
    ]
    theirs = service.chat(*follow, headers=bob, user="eve").json()["onward"]
    assert (theirs["parent_id"], theirs["session_id"] == "s1") == (None, False)
    assert service.turn(theirs["inference_id"]).user_id != recorded.user_id


def test_what_others_said_is_not_replaced_while_nobody_can_tell_whose_it_is(make_service: MakeService) -> None:
    service = make_service(keys=(*KEYS, ApiKey(key="key-of-an-admin", namespace="ada", scopes=("feedback", "admin"))))
    ada, other, admin = map(bearer, ("key-of-ada", "key-to-read", "key-of-an-admin"))
    inference_id = service.chat("hi", headers=ada).headers["x-onward-inference-id"]
    said = {"inference_id": inference_id, "metric_name": "accepted", "value": True, "feedback_id": "f1"}
    assert service.post("/v1/feedback", said, **ada).status_code == 200
    wait_for(service.outcomes)
    instead = said | {"value": False, "supersedes": "f1", "feedback_id": "f2"}
    assert service.post("/v1/feedback", instead, **other).status_code == 404
    service.store.broken = True
    for caller in (other, ada):
        assert service.post("/v1/feedback", instead, **caller).status_code == 503
    assert service.post("/v1/feedback", instead | {"feedback_id": "f3"}, **admin).status_code == 202
    service.store.broken = False
    wait_for(lambda: service.get("/v1/feedback/f1", **ada).json().get("successor") == "f3")


@pytest.mark.parametrize("host", ["0.0.0.0", "192.168.0.7", "::", "example.org"])
def test_beyond_loopback_there_must_be_keys(host: str) -> None:
    with pytest.raises(ConfigError, match=r"api\.keys"):
        KeyRing(ApiSettings(host=host, user_hash_key="a key of our own"))
    with pytest.raises(ConfigError, match=r"api\.user_hash_key"):
        KeyRing(ApiSettings(host=host, keys=KEYS))
    KeyRing(ApiSettings(host=host, keys=KEYS, user_hash_key="a key of our own"))


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "::1", "localhost"])
def test_loopback_needs_no_keys(host: str) -> None:
    assert KeyRing(ApiSettings(host=host)).identify(b"Bearer anything").namespace == "default"


def test_policies_and_rollback(service: Service) -> None:
    with service.store.work() as work:
        for number in (1, 2):
            version = work.policies.allocate(NOW)
            parent = base_ref(1) if number == 2 else None
            policy = made_events.policy(version, policy="base", digest=f"d{number}", parent=parent, turns=number)
            work.policies.put(policy)
        release = Release(version=version, cluster="local", state="live", why="gate", by="gate", at=NOW)
        work.releases.put(release)
    listed = service.get("/v1/policies").json()
    assert [(p["version"], p["state"], p["parent"]) for p in listed["data"]] == [(2, "live", 1), (1, "candidate", None)]
    assert listed["live"] == 1
    assert (listed["pinned"], listed["held"], listed["experiment"]) == (None, [], None)
    chain = service.get("/v1/releases").json()["data"]
    assert [(step["version"], step["state"], step["by"], step["why"]) for step in chain] == [
        (2, "live", "gate", "gate")
    ]
    assert service.get(f"/v1/releases?after={chain[0]['sequence']}").json()["data"] == []


@pytest.mark.parametrize("kind", ["promote", "rollback", "hold", "unhold", "pin", "unpin"])
def test_orders_wait_until_they_are_carried_out(service: Service, kind: str) -> None:
    answer = service.post(f"/v1/policies/7/{kind}", {"why": "worse"})
    assert (answer.status_code, answer.json()["version"]) == (200, 7)
    assert [(order.kind, order.version, order.why, order.by) for order in service.orders.done] == [
        (kind, base_ref(7), "worse", "keyless")
    ]


@pytest.mark.parametrize(
    ("code", "status"), [("unknown_version", 404), ("invalid", 400), ("refused", 409), ("unavailable", 503)]
)
def test_an_order_that_is_refused_says_why(service: Service, code: str, status: int) -> None:
    service.orders.refuse_with = (code, "because")
    answer = service.post("/v1/policies/7/rollback", {"why": "x"})
    assert answer.status_code == status
    assert "because" in answer.json()["error"]["message"]
    if status != 503:
        assert answer.json()["error"]["param"] == "version"


def test_an_order_that_nobody_carries_out_is_accepted_in_the_end(make_service: MakeService) -> None:
    impatient = make_service(advanced={"order_wait_s": 0.2})
    impatient.orders.silent = True
    answer = impatient.post("/v1/policies/7/rollback", {"why": "x"})
    assert (answer.status_code, answer.json()["status"]) == (202, "accepted")


def test_orders_that_are_none(service: Service) -> None:
    for version in ("x", "9" * 30):
        assert service.post(f"/v1/policies/{version}/rollback", {"why": "x"}).status_code == 404
    for body in ({}, {"why": ""}, {"why": "x", "colour": 1}):
        assert service.post("/v1/policies/1/rollback", body).status_code == 400
    assert service.orders.done == []


def test_experiments_are_listed(service: Service) -> None:
    with service.store.work() as work:
        for place in range(2):
            work.experiments.put(
                Experiment(
                    experiment_id=f"e{place}",
                    cluster="local",
                    canary=base_ref(place + 2),
                    control=base_ref(1),
                    share=0.2,
                    salt="s",
                    started_at=NOW + timedelta(seconds=place),
                    ended_at=NOW + timedelta(seconds=9) if place == 0 else None,
                    verdict="rollback" if place == 0 else None,
                    figures={"difference": -0.2} if place == 0 else {},
                ),
            )
    listed = service.get("/v1/experiments").json()["data"]
    assert [(each["experiment_id"], each["verdict"], each["figures"]) for each in listed] == [
        ("e1", None, {}), ("e0", "rollback", {"difference": -0.2}),
    ]  # fmt: skip
    assert service.get("/v1/policies").json()["experiment"]["canary"] == 3


def test_rewards_page_by_page(service: Service) -> None:
    put(service, 1, 2, 3)
    put(service, 4, namespace="another")
    first = service.get("/v1/rewards?limit=2").json()
    assert [entry["inference_id"] for entry in first["data"]] == ["i1", "i2"]
    rest = service.get(f"/v1/rewards?after={first['next']}").json()
    assert [entry["value"] for entry in rest["data"]] == [0.3]
    assert service.get(f"/v1/rewards?after={rest['next']}").json() == {
        "object": "list",
        "data": [],
        "next": rest["next"],
    }


def test_the_reward_stream_goes_on_where_it_was(service: Service) -> None:
    put(service, 1)
    url = f"{service.url}/v1/rewards/stream"
    with httpx.stream("GET", url, timeout=WAIT_S) as answer, httpx.stream("GET", url, timeout=WAIT_S) as other:
        lines, others = answer.iter_lines(), other.iter_lines()
        assert [next(lines), next(others)] == [": open"] * 2
        put(service, 2, 3)
        seen = events(lines, 2)
        assert events(others, 2) == seen
    assert [event["inference_id"] for _, event in seen] == ["i2", "i3"]
    put(service, 4)
    resume = {"Last-Event-ID": str(seen[0][0])}
    with httpx.stream("GET", url, headers=resume, timeout=WAIT_S) as answer:
        again = events(answer.iter_lines(), 2)
    assert [event["inference_id"] for _, event in again] == ["i3", "i4"]
    assert all(a < b for (a, _), (b, _) in pairwise(seen + again[1:]))
    assert httpx.get(url, headers={"Last-Event-ID": "x"}, timeout=WAIT_S).status_code == 400


def test_the_stream_survives_a_store_that_is_away(service: Service) -> None:
    with httpx.stream("GET", f"{service.url}/v1/rewards/stream", timeout=WAIT_S) as answer:
        lines = answer.iter_lines()
        next(lines)
        service.store.broken = True
        put(service, 1)
        wait_for(lambda: service.get("/v1/rewards").status_code == 503)
        service.store.broken = False
        assert events(lines, 1)[0][1]["inference_id"] == "i1"


def test_health_says_what_is_wrong(service: Service) -> None:
    assert service.get("/healthz").status_code == 200
    assert service.get("/readyz").json() == {"status": "ok", "components": {"writer": "ok"}}
    service.states["writer"] = "the disk is full"
    answer = service.get("/readyz")
    assert (answer.status_code, answer.json()["components"]) == (503, {"writer": "the disk is full"})
    assert service.get("/healthz").status_code == 200


def test_metrics_count_turns_and_errors(service: Service) -> None:
    service.chat("hi", headers={"x-onward-workload": "counted"})
    service.chat("hi", colour=1)
    text = service.get("/metrics").text
    assert 'onward_turns_total{finish_reason="stop",workload="counted"} 1.0' in text
    assert 'onward_request_errors_total{status="400"}' in text


def test_clients_cannot_make_metrics_grow_without_bound(service: Service) -> None:
    for number in range(110):
        service.chat("hi", headers={"x-onward-workload": f"w{number}"})
    text = service.get("/metrics").text
    assert 'workload="other"' in text
    assert 'workload="w109"' not in text


def test_the_names_that_feedback_may_have_are_listed(service: Service) -> None:
    listed = {outcome["name"]: outcome for outcome in service.get("/v1/outcomes").json()["data"]}
    refused = service.post("/v1/feedback", {"inference_id": "x", "metric_name": "nothing", "value": True}).json()
    assert f"is not one of {', '.join(sorted(listed))}" in refused["error"]["message"]
    accepted = listed["accepted"]
    assert (accepted["type"], accepted["role"], accepted["meaning"]) == ("boolean", "accept", "It was taken.")
    assert (listed["rating"]["type"], listed["rating"]["meaning"]) == ("number", None)


def test_our_own_routes_know_no_query_but_their_own(service: Service) -> None:
    """Consent that was withdrawn in the wrong place would else be lost without a word."""
    own = ["POST /v1/feedback", "POST /v1/feedback/batch", "GET /v1/feedback/x", "DELETE /v1/feedback/x"]
    for asked in (*own, "GET /v1/outcomes", "POST /v1/sessions/x/end", "POST /v1/policies/1/hold"):
        method, path = asked.split()
        body = {} if method == "POST" else None
        answer = service.http.request(method, f"{path}?learn=false", json=body)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "learn"), asked


def test_the_document_describes_it_all(service: Service) -> None:
    document = service.get("/openapi.json").json()
    assert set(document["paths"]) == {
        "/v1/responses", "/v1/responses/{response_id}", "/v1/messages", "/v1/messages/count_tokens",
        "/v1/fim/completions", "/infill", "/v1/chat/completions", "/v1/completions",
        "/v1/feedback", "/v1/feedback/{feedback_id}", "/v1/models",
        "/v1/models/{model}", "/v1/policies", "/v1/releases", "/v1/experiments", "/v1/rewards", "/v1/rewards/stream",
        "/v1/rewards/{inference_id}",
        *(f"/v1/policies/{{version}}/{kind}" for kind in ("promote", "rollback", "hold", "unhold", "pin", "unpin")),
        "/v1/turns/{inference_id}", "/v1/curves", "/v1/behaviour", "/v1/frontier", "/v1/stages",
        "/v1/sessions", "/v1/clients", "/v1/improvement", "/v1/overview", "/v1/serving",
        "/v1/sessions/{session_id}", "/v1/sessions/{session_id}/end", "/v1/fleet", "/v1/status", "/healthz", "/readyz",
        "/health", "/metrics", "/v1/outcomes", "/v1/feedback/batch", "/v1/continue/data",
        "/tabby/v1/completions", "/tabby/v1/events", "/tabby/v1/health", "/tabby/v1beta/server_setting",
        "/v1/logs", "/v1/traces",
        "/v1/alarms", "/v1/alarms/{alarm_id}/ack", "/v1/alarms/{alarm_id}/unack", "/v1/audit", "/v1/audit/head",
        "/v1/drafts", "/v1/drafts/{name}", *(f"/v1/drafts/{{name}}/{kind}" for kind in ("accept", "reject", "undo")),
        "/v1/exclusions", "/v1/exclusions/preview",
        "/v1/keys", "/v1/keys/{key_id}/revoke", "/v1/keys/{key_id}/rotate", "/v1/quotas",
        "/v1/consent",
    }  # fmt: skip
    schemas = document["components"]["schemas"]
    chat = schemas["ChatBody"]
    for ignoring in ("ChatBody", "Tool", "UserMessage", "MessagesBody", "TabbyEvent"):
        assert "additionalProperties" not in schemas[ignoring], "what nobody knows is ignored there by name"
    for own in ("FeedbackBody", "FeedbackBatch", "KeyBody", "ConsentBody"):
        assert schemas[own]["additionalProperties"] is False
    assert {"messages", "tools", "session_id", "stop"} <= set(chat["properties"])
    assert "when to send it" in schemas["OutcomeInfo"]["properties"]["meaning"]["description"]
    listed = document["paths"]["/v1/outcomes"]["get"]["responses"]["200"]["content"]["application/json"]["schema"]
    assert listed == {"$ref": "#/components/schemas/OutcomeList"}
    answer = document["paths"]["/v1/chat/completions"]["post"]["responses"]["200"]
    assert set(service.chat("hi").headers) - {"date", "server", "content-length", "content-type"} <= set(
        answer["headers"]
    )
    kinds = {
        path: set(document["paths"][path]["get"]["responses"]["200"]["content"])
        for path in ("/metrics", "/v1/rewards/stream")
    }
    assert kinds == {"/metrics": {"text/plain"}, "/v1/rewards/stream": {"text/event-stream"}}
    references = set(_references(document))
    assert references
    assert {name.removeprefix("#/components/schemas/") for name in references} <= set(document["components"]["schemas"])


def _references(node: Any) -> Iterator[str]:
    if isinstance(node, dict):
        if isinstance(node.get("$ref"), str):
            yield node["$ref"]
        for part in node.values():
            yield from _references(part)
    elif isinstance(node, list):
        for part in node:
            yield from _references(part)
