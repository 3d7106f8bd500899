"""What is counted over all namespaces is told to nobody who could learn from it what others do."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from api_harness import Service, serve

from api.operator import health
from core.telemetry import ALERTS, QUOTA_USED, exposition

COUNTED = ("turns", "tokens", "busy_s")


def key(name: str, namespace: str, *scopes: str) -> dict[str, Any]:
    return {"key": f"key-of-{name}", "namespace": namespace, "scopes": list(scopes)}


ALONE = [
    key("chatter", "acme", "chat", "feedback"),
    key("reader", "acme", "chat", "read"),
    key("admin", "acme", "admin"),
]
SHARED = [*ALONE, key("other", "globex", "chat", "read")]


def bearer(name: str) -> dict[str, str]:
    return {"authorization": f"Bearer key-of-{name}"}


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """Yield a service whose keys are all of one namespace, which has answered in a workload of its clients' name."""
    with serve(tmp_path_factory.mktemp("alone") / "service", keys=ALONE) as service:
        service.chat("hi", headers={**bearer("chatter"), "x-onward-workload": "secret-plan"})
        yield service


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """Yield the same of two namespaces."""
    with serve(tmp_path_factory.mktemp("shared") / "service", keys=SHARED) as service:
        service.chat("hi", headers={**bearer("chatter"), "x-onward-workload": "secret-plan"})
        yield service


def told(service: Service, path: str, name: str) -> dict[str, Any]:
    answer = service.http.get(path, headers=bearer(name))
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


@pytest.mark.parametrize("name", ["reader", "other"])
def test_one_of_several_namespaces_is_told_no_sums(shared: Service, name: str) -> None:
    status, serving, stages = (told(shared, f"/v1/{what}", name) for what in ("status", "serving", "stages"))
    assert [status[what] for what in COUNTED] == [None] * 3
    assert (serving["queue"], serving["disk"]) == (None, None)
    assert {stage["behind"] for stage in stages["data"]} == {None}
    assert status["last_minute"]["requests"] >= (name == "reader"), "its own it is told"


@pytest.mark.parametrize("name", ["admin", "reader"])
def test_an_admin_is_told_and_who_has_the_service_alone(shared: Service, alone: Service, name: str) -> None:
    service = shared if name == "admin" else alone
    status, serving, stages = (told(service, f"/v1/{what}", name) for what in ("status", "serving", "stages"))
    assert status["turns"]["answered"] >= 1
    assert None not in [status[what] for what in COUNTED]
    assert serving["disk"] is not None
    assert {type(stage["behind"]) for stage in stages["data"]} == {int}


# ------------------------------------------------------------------------------------------------ /metrics


def metrics(service: Service, **headers: str) -> tuple[int, str]:
    answer = service.http.get("/metrics", headers=headers)
    return answer.status_code, answer.text


def test_metrics_of_several_namespaces_are_an_admins(shared: Service) -> None:
    assert [metrics(shared, **bearer(name))[0] for name in ("reader", "other", "chatter")] == [403] * 3
    assert metrics(shared)[0] == metrics(shared, **bearer("nobody"))[0] == 401
    status, text = metrics(shared, **{"x-api-key": "key-of-admin"})
    assert (status, 'workload="secret-plan"' in text) == (200, True)


def test_a_stranger_is_told_no_names_and_the_same_sums(alone: Service) -> None:
    assert alone.chat("hi", headers=bearer("chatter"), functions=[{}]).status_code == 400
    ALERTS.labels("pager-of-acme", "delivered").inc()  # a target's name, which an operator chose
    for name, share in (("acme-plugin", 7.5), ("acme-batch", 7.25)):
        QUOTA_USED.labels("key", name, "tokens").set(share)
    for said in ({}, bearer("chatter")):
        status, text = metrics(alone, **said)
        assert (status, "secret-plan" in text, "acme" in text, "namespace=" in text) == (200, False, False, False)
        assert 'onward_quota_used_share{kind="key",of="tokens"} 7.5' in text, "the greatest share, which is no sum"
        samples = dict(line.rpartition(" ")[::2] for line in text.splitlines() if line[0] != "#")
        assert float(samples['onward_turns_total{finish_reason="stop"}']) >= 1
        assert len([line for line in text.splitlines() if line.startswith("onward_refused_requests_total{")]) >= 1
    status, text = metrics(alone, **bearer("reader"))
    assert (status, 'workload="secret-plan"' in text, 'namespace="acme"' in text) == (200, True, True)
    assert metrics(alone, **bearer("nobody"))[0] == 401


def test_whoever_needs_no_key_is_told_all(service: Service) -> None:
    service.chat("hi", headers={"x-onward-workload": "open-plan"})
    assert 'workload="open-plan"' in metrics(service)[1]


def test_no_page_is_made_on_the_event_loop(alone: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    """One of many workloads takes long, and all answers would wait for it."""
    loops: list[object] = []

    def watched(*, named: bool) -> bytes:
        loops.append(asyncio._get_running_loop())  # of this thread, if there is one
        return exposition(named=named)

    monkeypatch.setattr(health, "exposition", watched)
    assert [metrics(alone, **said)[0] for said in ({}, bearer("reader"))] == [200, 200]
    assert loops == [None, None]
