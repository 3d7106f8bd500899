"""The notifier against servers that answer, refuse, hang and come back."""

import base64
import hashlib
import hmac
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import made_events
import pytest
from receiver import Receiver, receiver

from core.clock import SystemClock
from core.ids import Namespace
from core.operations.alarm_advice import ADVICE
from core.settings import AlertSettings
from core.stages.rounds import Rounds
from core.store import SqlStore, open_sqlite
from scoring.alerts.stage import Notifier

SECRET = "a-secret-of-many-characters"
Notify = Callable[..., Rounds]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqlStore]:
    store = open_sqlite(tmp_path / "store.db")
    yield store
    store.close()


@pytest.fixture
def taker() -> Iterator[Receiver]:
    with receiver() as found:
        yield found


def notifier(store: SqlStore, targets: dict[str, dict[str, Any]], **settings: Any) -> Rounds:
    """Return its rounds. A pause of the machine is no silence of a target: after that it would be asked once more."""
    targets = {name: {"timeout_s": 60} | target for name, target in targets.items()}
    settings = {"retry_s": 0.01, "most_retry_s": 0.02} | settings
    return Rounds("notifier", Notifier(store, AlertSettings(targets=targets, **settings), SystemClock()))  # type: ignore[arg-type]


def raise_alarm(store: SqlStore, name: str, **fields: Any) -> None:
    with store.work() as work:
        assert work.alarms.open(made_events.opening(name, **({"opened_at": datetime.now(UTC)} | fields)))


def close_alarm(store: SqlStore, name: str) -> None:
    with store.work() as work:
        work.alarms.close(name, datetime.now(UTC))


def go_on(rounds: Rounds, until: Callable[[], Any]) -> None:
    deadline_s = time.monotonic() + 60
    while not until():
        assert time.monotonic() < deadline_s
        rounds.step(0.01)


def test_a_webhook_is_told_of_each_opening_and_closing_once_and_signed(store: SqlStore, taker: Receiver) -> None:
    raise_alarm(store, "a", figures={"recent": 0.5, "tool:of_a_client": 1.0})
    ops = {"url": f"{taker.url}/hook?team=1", "secret": SECRET, "token": "abc"}
    rounds = notifier(store, {"ops": ops}, console="https://onward.example.org/at#alarms")
    go_on(rounds, lambda: taker.requests)
    close_alarm(store, "a")
    go_on(rounds, lambda: len(taker.requests) == 2)
    for _ in range(3):
        rounds.step(0.01)
    assert taker.keys == ["a.opened", "a.closed"]
    opened, closed = (request.body for request in taker.requests)
    assert (opened["version"], opened["status"], opened["receiver"]) == ("4", "firing", "ops")
    (alert,) = opened["alerts"]
    assert alert["labels"] | {"service": ""} == {
        "alertname": "questions",
        "severity": "critical",
        "service": "",
        "namespace": "default",
        "workload": "a",
        "alarm_id": "a",
    }
    assert alert["annotations"] == {
        "summary": "Questions instead of risky edits.",
        "advice": ADVICE["questions"],
        "figures": "recent 0.5",
        "holds": "release",
        "runbook_url": "https://onward.example.org/at/docs/monitors/#questions",
    }
    assert alert["endsAt"].startswith("0001")
    assert closed["status"] == closed["alerts"][0]["status"] == "resolved"
    assert closed["alerts"][0]["startsAt"] == alert["startsAt"] < closed["alerts"][0]["endsAt"]
    assert closed["groupKey"] == opened["groupKey"]
    for request in taker.requests:
        given = request.headers
        said = f"{given['webhook-id']}.{given['webhook-timestamp']}.".encode() + request.raw
        mac = base64.b64encode(hmac.digest(SECRET.encode(), said, hashlib.sha256)).decode()
        assert given["webhook-signature"] == f"v1,{mac}"
        assert (request.path, given["authorization"]) == ("/hook?team=1", "Bearer abc")


def test_what_fails_is_tried_again_with_the_same_key_and_in_order(store: SqlStore, taker: Receiver) -> None:
    taker.answers = [503, 429, 302, 401]
    rounds = notifier(store, {"ops": {"url": taker.url}})
    rounds.step(0.01)
    raise_alarm(store, "a")
    close_alarm(store, "a")
    raise_alarm(store, "b")
    go_on(rounds, lambda: len(taker.requests) == 7)
    assert taker.keys == [*["a.opened"] * 5, "a.closed", "b.opened"]


def test_waits_grow_and_heed_what_is_asked(store: SqlStore, taker: Receiver) -> None:
    taker.answers, taker.answer_headers = [503] * 50, {"retry-after": "3600"}
    raise_alarm(store, "a")
    rounds = notifier(store, {"ops": {"url": taker.url}})
    go_on(rounds, lambda: taker.requests)
    for _ in range(10):
        rounds.step(0.02)
    assert len(taker.requests) == 1


def test_what_can_never_be_taken_holds_up_nothing(store: SqlStore, taker: Receiver) -> None:
    taker.answers = [422]
    raise_alarm(store, "a")
    raise_alarm(store, "b")
    rounds = notifier(store, {"ops": {"url": taker.url}})
    go_on(rounds, lambda: len(taker.requests) == 2)
    for _ in range(3):
        rounds.step(0.01)
    assert taker.keys == ["a.opened", "b.opened"]


@pytest.mark.timed
def test_a_target_that_hangs_holds_up_neither_another_nor_who_raises_alarms(store: SqlStore, taker: Receiver) -> None:
    with receiver() as other:
        taker.held.clear()
        raise_alarm(store, "a")
        rounds = notifier(store, {"slow": {"url": taker.url, "timeout_s": 60}, "ops": {"url": other.url}})
        telling = threading.Thread(target=lambda: go_on(rounds, lambda: len(taker.requests) == 1 and other.requests))
        telling.start()
        deadline_s = time.monotonic() + 40
        while not other.requests:
            assert time.monotonic() < deadline_s
            time.sleep(0.01)
        began_s = time.monotonic()
        raise_alarm(store, "b")
        assert time.monotonic() - began_s < 30
        taker.held.set()
        telling.join()
    assert taker.keys == other.keys == ["a.opened"]


def test_each_target_has_its_own_namespaces_and_weights(store: SqlStore, taker: Receiver) -> None:
    with receiver() as acme:
        raise_alarm(store, "a", namespace=Namespace("acme"), severity="warning")
        raise_alarm(store, "b", namespace=Namespace("other"))
        raise_alarm(store, "c", namespace=Namespace("acme"), severity="info")
        targets = {
            "all": {"url": taker.url, "severities": ["critical"]},
            "acme": {"url": acme.url, "namespaces": ["acme"]},
        }
        rounds = notifier(store, targets)
        go_on(rounds, lambda: taker.requests and acme.requests)
        close_alarm(store, "c")
        close_alarm(store, "b")
        go_on(rounds, lambda: len(taker.requests) == 2)
        for _ in range(3):
            rounds.step(0.01)
        assert (taker.keys, acme.keys) == (["b.opened", "b.closed"], ["a.opened"])


def test_a_target_hears_nothing_of_before_it_was_known_but_what_is_open(store: SqlStore, taker: Receiver) -> None:
    raise_alarm(store, "old", opened_at=datetime.now(UTC) - timedelta(minutes=2))
    with store.work() as work:
        work.alarms.close("old", datetime.now(UTC) - timedelta(minutes=1))
    raise_alarm(store, "still", opened_at=datetime.now(UTC) - timedelta(minutes=1))
    rounds = notifier(store, {"ops": {"url": taker.url}})
    go_on(rounds, lambda: taker.requests)
    rounds.step(0.01)
    assert taker.keys == ["still.opened"]


def test_what_is_long_over_is_given_up_and_what_is_open_is_told_however_old(store: SqlStore, taker: Receiver) -> None:
    hours_ago = datetime.now(UTC) - timedelta(hours=3)
    with store.work() as work:
        work.told.know("ops", hours_ago)
    raise_alarm(store, "over", opened_at=hours_ago)
    with store.work() as work:
        work.alarms.close("over", hours_ago + timedelta(hours=1))
    raise_alarm(store, "open", opened_at=hours_ago)
    rounds = notifier(store, {"ops": {"url": taker.url}}, give_up_s=60)
    go_on(rounds, lambda: taker.requests)
    for _ in range(3):
        rounds.step(0.01)
    assert taker.keys == ["open.opened"]


def test_an_alertmanager_is_told_by_its_own_api_and_reminded(
    store: SqlStore, taker: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("scoring.alerts.stage._AGAIN_S", 0.05)
    raise_alarm(store, "a")
    rounds = notifier(store, {"am": {"url": f"{taker.url}/", "kind": "alertmanager"}})
    go_on(rounds, lambda: len(taker.requests) >= 3)
    close_alarm(store, "a")
    go_on(rounds, lambda: taker.keys[-1] == "a.closed")
    told = len(taker.requests)
    until_s = time.monotonic() + 0.2
    go_on(rounds, lambda: time.monotonic() > until_s)
    assert len(taker.requests) == told, "what is closed is told once"
    assert {request.path for request in taker.requests} == {"/api/v2/alerts"}
    (first,), (last,) = taker.requests[0].body, taker.requests[-1].body
    assert set(first) == {"labels", "annotations", "startsAt", "endsAt", "generatorURL"}
    assert first["labels"] == last["labels"]
    ends = datetime.fromisoformat(first["endsAt"])
    assert timedelta(minutes=4) < ends - datetime.now(UTC) <= timedelta(minutes=5)
    assert datetime.fromisoformat(last["endsAt"]) <= datetime.now(UTC)
