"""The audit trail of requests: who read or changed what stands in the store before they hear of it."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import pytest
from api_harness import Service, serve, wait_for
from made_events import opening

from api.access.routes import ACCESS
from core.operations.audit import find_tampering
from core.settings import AuditSettings

KEYS: Any = (
    {"key": "key-of-a-plugin", "namespace": "ours", "name": "plugin", "scopes": ("chat", "feedback")},
    {"key": "key-that-reads", "namespace": "ours", "name": "analyst", "scopes": ("read",)},
    {"key": "key-of-operator", "namespace": "ours", "name": "night", "scopes": ("read", "operate")},
    {"key": "key-of-auditor", "namespace": "ours", "name": "auditor", "scopes": ("audit",)},
    {"key": "key-of-their-auditor", "namespace": "theirs", "scopes": ("audit",)},
    {"key": "key-of-the-admin", "namespace": "theirs", "name": "root", "scopes": ("admin",)},
)


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    with serve(tmp_path / "service", keys=KEYS) as service:
        yield service


def trail(service: Service) -> list[dict[str, Any]]:
    """Return what the trail says, the oldest entry first, after checking that it is whole."""
    with service.store.look() as view:
        entries = list(view.audit.in_order())
    head = service.services.head
    assert head is not None
    kept = head.read()
    assert list(find_tampering(entries, [] if kept is None else [kept])) == []
    assert (kept.sequence if kept else 0) == len(entries)
    return [msgspec.json.decode(entry.record) for entry in entries]


def ask(service: Service, user: str | None = "ada") -> dict[str, str]:
    """Return the ids of a turn that the plugin asked for."""
    answer = service.chat("a secret question", headers=bearer("key-of-a-plugin"), **({"user": user} if user else {}))
    found = {name: answer.headers[f"x-onward-{name}-id"] for name in ("inference", "session")}
    service.turn(found["inference"])
    return found


def short(entry: dict[str, Any]) -> tuple[Any, ...]:
    return entry["by"], entry["kind"], entry["what"], entry["status"]


def test_who_read_whose_turn_is_written_and_no_word_of_it(service: Service) -> None:
    made = ask(service)
    user = service.turn(made["inference"]).user_id
    reader = bearer("key-that-reads")
    assert service.get(f"/v1/turns/{made['inference']}", **reader).status_code == 200
    assert service.get(f"/v1/sessions/{made['session']}", **reader).status_code == 200
    assert service.get("/v1/sessions", **reader).status_code == 200
    turn, session, listed = trail(service)
    assert short(turn) == ("analyst", "read", "GET /v1/turns/{inference_id}", 200)
    assert turn["objects"] == {"inference_id": made["inference"]}
    assert turn["users"] == session["users"] == [user]
    assert turn["key"].startswith("#")
    assert turn["namespace"] == "ours"
    assert session["objects"] == {"session_id": made["session"]}
    assert short(listed) == ("analyst", "read", "GET /v1/sessions", 200)
    with service.store.look() as view:
        assert not [each for each in view.audit.in_order() if b"secret" in each.record]


def test_who_was_refused_is_written_and_who_looks_at_nobodys_things_is_not(service: Service) -> None:
    made = ask(service)
    for path in (f"/v1/turns/{made['inference']}", "/v1/models", "/v1/outcomes"):
        assert service.get(path, **bearer("key-of-a-plugin")).status_code == 200
    for path in ("/v1/status", "/v1/policies", "/v1/fleet"):
        assert service.get(path, **bearer("key-that-reads")).status_code == 200
    assert service.get("/v1/sessions", **bearer("no-such-key")).status_code == 401
    assert trail(service) == []
    assert service.get("/v1/sessions", **bearer("key-of-a-plugin")).status_code == 403
    assert service.get("/v1/turns/none", **bearer("key-that-reads")).status_code == 404
    assert service.get("/v1/turns/a%20secret%20word", **bearer("key-that-reads")).status_code == 404
    refused, missing, worded = trail(service)
    assert short(refused) == ("plugin", "read", "GET /v1/sessions", 403)
    assert short(missing)[3] == 404
    assert (missing["objects"], worded["objects"]) == ({"inference_id": "none"}, {})


def test_the_same_read_is_written_once_in_a_while(tmp_path: Path) -> None:
    reader = bearer("key-that-reads")
    for repeat_s, written in ((60.0, 2), (0.0, 6)):
        with serve(tmp_path / str(repeat_s), keys=KEYS, audit=AuditSettings(repeat_s=repeat_s)) as service:
            for _ in range(3):
                for path in ("/v1/sessions", "/v1/rewards"):
                    assert service.get(path, **reader).status_code == 200
            assert len(trail(service)) == written


def test_an_order_is_written_with_its_number_and_what_came_of_it(service: Service) -> None:
    admin = bearer("key-of-the-admin")
    given = service.post("/v1/policies/3/hold", {"why": "words of mine"}, **admin)
    assert given.status_code == 200
    service.orders.refuse_with = ("unknown_version", "there is no version 9")
    assert service.post("/v1/policies/9/pin", {"why": "x"}, **admin).status_code == 404
    assert service.post("/v1/policies/9/pin", {"why": "x"}, **bearer("key-that-reads")).status_code == 403
    ordered, pinned, failed, refused = trail(service)
    assert short(ordered) == ("root", "order", "POST /v1/policies/{version}/hold", None)
    assert ordered["objects"] == {"version": "3", "order_id": "1"}
    assert ordered["namespace"] == ""
    assert [each["objects"]["order_id"] for each in (pinned, failed)] == ["2", "2"]
    assert (pinned["status"], failed["status"]) == (None, 404)
    assert short(refused)[0::3] == ("analyst", 403)
    with service.store.look() as view:
        assert not [each for each in view.audit.in_order() if b"words" in each.record]


def test_alarms_and_withdrawn_feedback_are_written(service: Service) -> None:
    made = ask(service)
    with service.store.work() as work:
        work.alarms.open(opening("alarm-1", namespace="ours"))
        work.alarms.open(opening("alarm-2", namespace="ours"))
        work.alarms.close("alarm-2", service.services.clock.now())
    admin, plugin = bearer("key-of-the-admin"), bearer("key-of-a-plugin")
    assert service.post("/v1/alarms/alarm-1/ack", {}, **admin).status_code == 200
    assert service.post("/v1/alarms/alarm-2/ack", {}, **admin).status_code == 409
    assert service.post("/v1/alarms/alarm-1/unack", {}, **admin).status_code == 200
    said = {"inference_id": made["inference"], "metric_name": "accepted", "value": True, "feedback_id": "f1"}
    assert service.post("/v1/feedback", said, **plugin).status_code == 200
    wait_for(service.outcomes)
    assert service.delete("/v1/feedback/f1", **plugin).status_code == 200
    found = trail(service)
    assert [short(each) for each in found] == [
        ("root", "change", "POST /v1/alarms/{alarm_id}/ack", None),
        ("root", "change", "POST /v1/alarms/{alarm_id}/ack", 409),
        ("root", "change", "POST /v1/alarms/{alarm_id}/unack", None),
        ("plugin", "delete", "DELETE /v1/feedback/{feedback_id:path}", 200),
    ]
    assert {each["namespace"] for each in found} == {"ours"}, "the admin is of another namespace"


def test_nothing_is_shown_that_cannot_be_written(service: Service) -> None:
    reader = bearer("key-that-reads")
    service.store.read_only = True
    answer = service.get("/v1/sessions", **reader)
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "unavailable")
    assert "data" not in answer.text
    service.store.read_only = False
    assert service.get("/v1/sessions", **reader).status_code == 200
    assert len(trail(service)) == 1


def test_many_readers_at_once_are_all_written(service: Service) -> None:
    made = [ask(service, user=None)["inference"] for _ in range(6)]

    def look(number: int) -> int:
        return service.get(f"/v1/turns/{made[number % 6]}", **bearer(KEYS[1 + number // 6]["key"])).status_code

    with ThreadPoolExecutor(12) as threads:
        assert set(threads.map(look, range(12))) == {200}
    found = trail(service)
    assert sorted((each["by"], each["objects"]["inference_id"]) for each in found) == sorted(
        (by, each) for by in ("analyst", "night") for each in made
    )


def test_the_trail_is_shown_to_auditors_of_the_namespace(service: Service) -> None:
    made = ask(service)
    service.get(f"/v1/turns/{made['inference']}", **bearer("key-that-reads"))
    service.post("/v1/policies/3/hold", {"why": "x"}, **bearer("key-of-the-admin"))
    ours = service.get("/v1/audit", **bearer("key-of-auditor")).json()
    assert [each["what"] for each in ours["data"]] == ["GET /v1/turns/{inference_id}"]
    assert service.get("/v1/audit", **bearer("key-of-their-auditor")).json() == {"data": [], "next": None}
    first = service.get("/v1/audit?limit=2", **bearer("key-of-the-admin")).json()
    rest = service.get(f"/v1/audit?before={first['next']}", **bearer("key-of-the-admin")).json()
    assert [each["sequence"] for each in (*first["data"], *rest["data"])] == [4, 3, 2, 1]
    assert service.get("/v1/audit", **bearer("key-that-reads")).status_code == 403
    head = service.get("/v1/audit/head", **bearer("key-of-auditor")).json()
    newest = service.get("/v1/audit?limit=1", **bearer("key-of-the-admin")).json()["data"][0]
    assert (head["sequence"], head["digest"]) == (newest["sequence"], newest["digest"])


def test_every_route_that_shows_or_changes_somebodys_things_stands_in_the_trail() -> None:
    """But for those by which turns and feedback come in: each is a record in the log, under the key that sent it."""
    for (method, path), need in ACCESS.items():
        brings_in = method == "POST" and need.scope in ("chat", "feedback") and path != "/v1/consent"
        names_nobody = path != "/v1/exclusions"  # which names the users and turns that were excluded
        shows_nothing = method == "GET" and need.reach in ("nobody's", "everybody's") and names_nobody
        assert (need.deed is None) == (brings_in or shows_nothing or not need.key), path


def test_who_is_refused_again_and_again_does_not_fill_the_trail(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Entries are kept for ever, and to be refused costs nothing; others' are written as before."""
    monkeypatch.setattr("api.access.trail._MOST_REFUSALS", 3)
    plugin, reader = bearer("key-of-a-plugin"), bearer("key-that-reads")
    for number in range(8):
        assert service.delete(f"/v1/feedback/unknown-{number}", **plugin).status_code == 404
        assert service.post(f"/v1/policies/{number}/promote", {"reason": "x"}, **plugin).status_code == 403
        assert service.get(f"/v1/turns/unknown-{number}", **reader).status_code == 404
    said = trail(service)
    refused = [
        (entry["kind"], entry["status"], *entry["objects"].values()) for entry in said if entry["by"] == "plugin"
    ]
    one_by_one = [("delete", 404, "unknown-0"), ("order", 403, "0"), ("delete", 404, "unknown-1")]
    assert refused == [*one_by_one, ("order", 403), ("delete", 404)]
    assert [entry["objects"] for entry in said if entry["by"] == "analyst"] == [
        *({"inference_id": f"unknown-{number}"} for number in range(3)),
        {},
    ]
