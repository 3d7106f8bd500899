"""Alarms over HTTP: who sees which, and who may acknowledge them."""

import re
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from api_harness import Service
from made_events import opening

from core.ids import Namespace
from core.operations.alarm_advice import ADVICE
from core.settings import ApiKey

NOW = datetime(2026, 1, 2, tzinfo=UTC)
TIMES = ("opened_at", "window_start", "window_end")
KEYS = (
    ApiKey(key="key-of-ada", namespace="ada", scopes=("chat", "read")),
    ApiKey(key="key-of-adas-operator", name="night-shift", namespace="ada", scopes=("operate",)),
    ApiKey(key="key-of-bob", namespace="bob", scopes=("admin",)),
)
MakeService = Callable[..., Service]


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


def put(service: Service, *names: str, **fields: Any) -> None:
    with service.store.work() as work:
        for name in names:
            work.alarms.open(opening(name, **dict.fromkeys(TIMES, NOW) | fields))


def names(answer: Any) -> list[str]:
    return [alarm["alarm_id"] for alarm in answer.json()["alarms"]]


def error(answer: Any) -> tuple[int, str | None, str | None]:
    return answer.status_code, answer.json()["error"]["param"], answer.json()["error"]["code"]


def test_an_alarm_is_shown_whole(service: Service) -> None:
    assert service.get("/v1/alarms").json() == {"alarms": [], "next": None}
    put(service, "a")
    (alarm,) = service.get("/v1/alarms").json()["alarms"]
    at = "2026-01-02T00:00:00Z"
    assert alarm == {
        "alarm_id": "a",
        "monitor": "questions",
        "meaning": "Questions instead of risky edits.",
        "advice": ADVICE["questions"],
        "docs": "docs/monitors/#questions",
        "severity": "critical",
        "state": "opened",
        "namespace": "default",
        "workload": "a",
        "figures": {"recent": 0.5, "reference": 0.125},
        "holds": ["release"],
        "opened_at": at,
        "acknowledged_at": None,
        "acknowledged_by": None,
        "note": None,
        "closed_at": None,
        "window_start": at,
        "window_end": at,
        "sequence": 1,
    }


def test_each_links_to_its_paragraph_and_one_that_no_monitor_opens_any_more_to_the_page(service: Service) -> None:
    for monitor in (*ADVICE, "of_another_time"):
        put(service, monitor, monitor=monitor)
    linked = {alarm["monitor"]: alarm["docs"] for alarm in service.get("/v1/alarms").json()["alarms"]}
    assert linked == {name: f"docs/monitors/#{name}" for name in ADVICE} | {"of_another_time": "docs/monitors/"}


def test_an_operator_acknowledges_once(service: Service) -> None:
    put(service, "a", "b")
    first = service.post("/v1/alarms/a/ack", {"note": "looked at it"})
    assert first.status_code == 200
    alarm = first.json()
    assert (alarm["state"], alarm["acknowledged_by"], alarm["note"]) == ("acknowledged", "keyless", "looked at it")
    assert alarm["acknowledged_at"] is not None
    assert service.post("/v1/alarms/a/ack", {"note": "again"}).json() == alarm
    assert service.post("/v1/alarms/b/ack", {}).json()["note"] is None
    assert names(service.get("/v1/alarms")) == ["b", "a"], "open until its monitor is content"


def test_an_acknowledgement_is_taken_back_until_the_alarm_closes(service: Service) -> None:
    put(service, "a", "b")
    (b, a) = service.get("/v1/alarms").json()["alarms"]
    for again in range(2):  # the second word of an operator counts as the first did
        service.post("/v1/alarms/a/ack", {"note": "looked at it"})
        assert [each["alarm_id"] for each in service.get("/v1/policies").json()["held_by"]] == ["b"], again
        assert service.post("/v1/alarms/a/unack", {}).json() == a
        assert service.post("/v1/alarms/a/unack", {}).json() == a, "a second time changes nothing"
        assert [each["alarm_id"] for each in service.get("/v1/policies").json()["held_by"]] == ["a", "b"], again
    assert service.post("/v1/alarms/b/unack", {}).json() == b, "nobody has acknowledged it"
    service.post("/v1/alarms/a/ack", {})
    with service.store.work() as work:
        work.alarms.close("a", NOW)
    assert error(service.post("/v1/alarms/a/unack", {})) == (409, "alarm_id", "alarm_closed")
    assert error(service.post("/v1/alarms/b/unack", {"note": "x"}))[:2] == (400, "note")
    assert error(service.post("/v1/alarms/nobody/unack", {})) == (404, "alarm_id", "unknown_alarm")


def test_closed_ones_are_shown_to_who_asks_for_all(service: Service) -> None:
    put(service, "a", "b")
    with service.store.work() as work:
        work.alarms.close("a", NOW)
    assert names(service.get("/v1/alarms?state=open")) == ["b"]
    assert names(service.get("/v1/alarms?state=all")) == ["b", "a"]
    assert error(service.post("/v1/alarms/a/ack", {})) == (409, "alarm_id", "alarm_closed")


def test_pages_follow_one_another(service: Service) -> None:
    put(service, *"abcde")
    seen, query = [], "limit=2"
    while query:
        page = service.get(f"/v1/alarms?{query}")
        seen.append(names(page))
        following = page.json()["next"]
        query = "" if following is None else f"limit=2&before={following}"
    assert seen == [["e", "d"], ["c", "b"], ["a"]]


def test_a_tenant_sees_its_own_and_an_operator_all(make_service: MakeService) -> None:
    service = make_service(keys=KEYS)
    put(service, "of-ada", namespace=Namespace("ada"))
    put(service, "of-carl", namespace=Namespace("carl"))
    assert names(service.get("/v1/alarms", **bearer("key-of-ada"))) == ["of-ada"]
    assert names(service.get("/v1/alarms", **bearer("key-of-bob"))) == ["of-carl", "of-ada"]
    assert service.get("/v1/alarms").status_code == 401
    assert error(service.post("/v1/alarms/of-ada/ack", {}, **bearer("key-of-ada"))) == (403, None, "missing_scope")
    operator = bearer("key-of-adas-operator")
    assert error(service.post("/v1/alarms/of-carl/ack", {}, **operator)) == (404, "alarm_id", "unknown_alarm")
    assert service.post("/v1/alarms/of-ada/ack", {}, **operator).json()["acknowledged_by"] == "night-shift"
    by = service.post("/v1/alarms/of-carl/ack", {}, **bearer("key-of-bob")).json()["acknowledged_by"]
    assert re.fullmatch("#[0-9a-f]{12}", by), "a fingerprint, where the key has no name"


def test_of_anothers_alarm_is_said_that_it_holds_releases_and_no_more(make_service: MakeService) -> None:
    service = make_service(keys=KEYS)
    put(service, "of-ada", namespace=Namespace("ada"))
    put(service, "of-carl", namespace=Namespace("carl"))
    for path in ("/v1/policies", "/v1/releases"):
        hers, all_ = (service.get(path, **bearer(f"key-of-{who}")).json()["held_by"] for who in ("ada", "bob"))
        assert [alarm["alarm_id"] for alarm in hers] == ["of-ada", None]
        assert hers[1] == {"alarm_id": None, "monitor": None, "meaning": "An alarm of another namespace."}
        assert [alarm["alarm_id"] for alarm in all_] == ["of-ada", "of-carl"]


@pytest.mark.parametrize(
    ("path", "param"),
    [("state=closed", "state"), ("limit=x", "limit"), ("limit=1001", "limit"), ("before=-1", "before"), ("x=1", "x")],
)
def test_a_wrong_query_is_named(quick_service: Service, path: str, param: str) -> None:
    code = "unknown_field" if param == "x" else "invalid_field"
    assert error(quick_service.get(f"/v1/alarms?{path}")) == (400, param, code)


def test_a_wrong_body_is_named(service: Service) -> None:
    put(service, "a")
    for body, param in (
        ({"note": ""}, "note"),
        ({"note": 1}, "note"),
        ({"note": "x" * 1001}, "note"),
        ({"why": "x"}, "why"),
    ):
        assert error(service.post("/v1/alarms/a/ack", body))[:2] == (400, param)
    assert service.get("/v1/alarms").json()["alarms"][0]["state"] == "opened"


def test_an_unknown_alarm_is_said_to_be_unknown(service: Service) -> None:
    assert error(service.post("/v1/alarms/nobody/ack", {})) == (404, "alarm_id", "unknown_alarm")
