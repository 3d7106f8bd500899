"""What `/v1/clients` and `/v1/serving` say after real requests of several clients in several protocols."""

import math
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from api_harness import MODEL, Service, serve, wait_for
from console_world import turn
from prometheus_client import Counter, Gauge, Histogram

from api.feedback.reports.report import count_unjoined
from api.operator.figures.counts import quantile_of
from core import telemetry
from core.clock import ManualClock
from core.ids import Namespace
from core.reward_spec import load_reward_spec
from onward.directory.layout import SHIPPED_REWARDS, Layout
from onward.wiring.disk import disk_of, tell_of_disk

START = datetime(2026, 1, 2, tzinfo=UTC)
OPENAI, ANTHROPIC, LLAMA = "OpenAI/Python 1.2", "Anthropic/Python 0.3", "llama.vim"


@pytest.fixture(autouse=True)
def counters(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the counters by fresh ones, since other tests of this process have counted too."""
    refused = Counter("refused", "", ("namespace", "client", "protocol", "code"), registry=None)
    unjoined = Counter("unjoined", "", ("namespace", "source", "reason"), registry=None)
    for place, fresh in (("api.access.clients", refused), ("api.feedback.reports.report", unjoined)):
        name = "REFUSED_REQUESTS" if fresh is refused else "UNJOINED_EVENTS"
        monkeypatch.setattr(f"{place}.{name}", fresh)
        monkeypatch.setattr(f"api.operator.figures.clients.{name}", fresh)


def rows(service: Service, **query: Any) -> dict[tuple[str, str], dict[str, Any]]:
    asked = "&".join(f"{name}={value}" for name, value in query.items())
    listed = service.get(f"/v1/clients?{asked}").json()["data"]
    return {(row.pop("client"), row.pop("protocol")): row for row in listed}


def test_each_client_and_protocol_has_its_shares(service: Service) -> None:
    sent = [service.chat("hi", headers={"user-agent": OPENAI}, verbosity="low") for _ in range(3)]
    sent.append(service.chat("hi", headers={"user-agent": OPENAI}, top_p=0.5))
    service.chat("hi", headers={"user-agent": OPENAI}, functions=[{}])
    service.post("/v1/messages", {"model": MODEL, "max_tokens": 0, "messages": []}, user_agent=ANTHROPIC)
    service.post("/infill", {"input_prefix": "a", "input_suffix": "b"}, user_agent=LLAMA)
    service.post("/v1/fim/completions", {"model": MODEL, "prompt": "a"}, user_agent=LLAMA)
    first = sent[0].json()["onward"]
    said = {"inference_id": first["inference_id"], "metric_name": "accepted", "value": True}
    assert service.post("/v1/feedback", said).status_code == 200
    about = {"session_id": sent[1].json()["onward"]["session_id"], "metric_name": "shipped", "value": True}
    assert service.post("/v1/feedback", about).status_code == 200
    wait_for(lambda: sum(row["turns"] for row in rows(service).values()) == 6 and len(service.outcomes()) == 2)
    found = rows(service)
    assert set(found) == {
        ("openai-python", "chat"), ("anthropic-python", "messages"), ("other", "infill"), ("other", "fim"),
    }  # fmt: skip
    chat = found["openai-python", "chat"]
    assert chat["turns"] == 4
    assert chat["trainable_share"] == pytest.approx(0.75)
    assert chat["untrainable"] == {"top_p": 1}
    assert chat["ignored"] == {"verbosity": 3}
    assert chat["refused"] == {"unsupported": 1}
    assert chat["feedback_share"] == pytest.approx(0.5)  # one of its own, one of its session
    refused = found["anthropic-python", "messages"]
    assert (refused["turns"], refused["trainable_share"]) == (0, None)
    assert sum(refused["refused"].values()) == 1
    recorded = service.turn(first["inference_id"])
    assert (recorded.client, recorded.protocol, recorded.ignored) == ("openai-python", "chat", ("verbosity",))
    assert service.get(f"/v1/turns/{recorded.inference_id}").json()["ignored"] == ["verbosity"]


def test_turns_of_before_clients_were_noted_are_of_an_unknown_one(service: Service) -> None:
    with service.store.work() as work:
        work.turns.put([turn(6, START)])
    (row,) = rows(service).items()
    assert (row[0], row[1]["turns"]) == (("unknown", "chat"), 1)


def test_it_looks_at_the_newest_turns_alone(service: Service) -> None:
    service.chat("hi", headers={"user-agent": OPENAI})
    newest = service.chat("hi", headers={"user-agent": ANTHROPIC})
    service.turn(newest.json()["onward"]["inference_id"])
    assert set(rows(service, turns=1)) == {("anthropic-python", "chat")}
    assert service.get("/v1/clients?turns=1001").json()["error"]["param"] == "turns"
    assert service.get("/v1/clients?limit=1").json()["error"]["param"] == "limit"


def test_events_that_were_joined_to_no_turn_are_told_by_source(service: Service) -> None:
    assert service.get("/v1/clients").json()["unjoined"] == {}
    for source, reason in (*[("vscode", "no_session")] * 3, ("codex", "no_turn")):
        count_unjoined(Namespace("default"), source, reason)
    count_unjoined(Namespace("theirs"), "codex", "no_turn")
    found = service.get("/v1/clients").json()["unjoined"]
    assert found == {"vscode": {"no_session": 3}, "codex": {"no_turn": 1}}


def test_each_namespace_is_told_its_own_alone(tmp_path: Path) -> None:
    keys = [{"key": f"key-of-{name}", "namespace": name, "scopes": ["admin"]} for name in ("acme", "globex")]
    acme, globex = ({"authorization": f"Bearer key-of-{name}", "user-agent": OPENAI} for name in ("acme", "globex"))
    event = {"name": "editOutcome", "data": {"accepted": True}}
    with serve(tmp_path / "service", spec=load_reward_spec(SHIPPED_REWARDS), keys=keys) as service:
        service.chat("hi", headers=acme, functions=[{}])
        service.chat("hi", headers={"authorization": "Bearer of-nobody"})
        assert service.http.post("/v1/continue/data", json=event, headers=acme).json()["reason"] == "no_id"
        own, other = (service.http.get("/v1/clients", headers=who).json() for who in (acme, globex))
        assert [(row["client"], row["refused"]) for row in own["data"]] == [("openai-python", {"unsupported": 1})]
        assert own["unjoined"] == {"continue": {"no_id": 1}}
        assert (other["data"], other["unjoined"]) == ([], {})


# ------------------------------------------------------------------------------------------------ speed and size


def test_serving_says_how_fast_turns_are(service: Service) -> None:
    empty = service.get("/v1/serving").json()
    assert (empty["turns"], empty["first_token_s"]) == (0, {"p50": None, "p99": None})
    for _ in range(3):
        last = service.chat("a question of some length").json()["onward"]["inference_id"]
    stored = service.turn(last)
    found = service.get("/v1/serving?turns=1").json()
    assert stored.ttft_ms is not None
    assert found["first_token_s"]["p50"] == pytest.approx(stored.ttft_ms / 1000)
    assert found["turn_s"]["p99"] == pytest.approx(stored.latency_ms / 1000)
    took_s = (stored.latency_ms - stored.ttft_ms) / 1000
    assert found["tokens_per_s"]["p50"] == pytest.approx((stored.num_output_tokens - 1) / took_s)
    assert service.get("/v1/serving?turns=1001").json()["error"]["param"] == "turns"


def test_the_queue_is_that_of_an_engine_in_this_process(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    waits = Histogram("waits", "", buckets=(0.1, 0.2, 0.4), registry=None)
    waiting = Gauge("waiting", "", registry=None)
    waiting.set(math.nan)
    monkeypatch.setattr(telemetry, "QUEUE_SECONDS", waits)
    monkeypatch.setattr(telemetry, "WAITING_REQUESTS", waiting)
    assert service.get("/v1/serving").json()["queue"] is None
    for wait_s in (0.05, 0.15, 0.3, 0.9):
        waits.observe(wait_s)
    queue = service.get("/v1/serving").json()["queue"]
    assert queue["wait_s"] == {"p50": pytest.approx(0.2), "p99": 0.4}
    assert queue["waiting"] is None, "an engine elsewhere does not tell"
    waiting.set(2)
    assert service.get("/v1/serving").json()["queue"]["waiting"] == 2


def test_a_quantile_lies_within_its_bucket() -> None:
    waits = Histogram("w", "", buckets=(1.0, 3.0), registry=None)
    assert quantile_of(waits, 0.5) is None
    for wait_s in (2.0, 2.0, 2.0, 2.0):
        waits.observe(wait_s)
    assert quantile_of(waits, 0.25) == pytest.approx(1.5)


def test_the_disk_is_measured_now_and_then(tmp_path: Path) -> None:
    layout, clock = Layout(tmp_path), ManualClock(START)
    measure = disk_of(layout, clock)
    assert set(measure()) == {"free"}
    layout.log.write_bytes(b"12345")
    layout.log.with_name("log.db-wal").write_bytes(b"123")
    (layout.blobs / "weights").mkdir(parents=True)
    (layout.blobs / "weights" / "1").write_bytes(b"1234567")
    assert set(measure()) == {"free"}, "it is asked every few seconds, and blobs are many"
    clock.advance(31)
    assert {name: size for name, size in measure().items() if name != "free"} == {"log": 8, "blobs": 7}
    version = layout.host("engine-1") / "versions" / "00000002"
    version.mkdir(parents=True)
    (version / "model.safetensors").hardlink_to(layout.blobs / "weights" / "1")  # a whole version's
    (version / "config.json").symlink_to(layout.log)
    (version / "model-1.safetensors").write_bytes(b"123")  # a merged one's
    clock.advance(31)
    assert measure()["hosts"] == 3


def test_metrics_tell_of_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    size, free = Gauge("size", "", registry=None), Gauge("free", "", registry=None)
    monkeypatch.setattr(telemetry, "DISK", size)
    monkeypatch.setattr(telemetry, "DISK_FREE", free)
    tell_of_disk(tmp_path)
    told = [next(iter(gauge.collect())).samples[0].value for gauge in (size, free)]
    assert told[0] >= told[1] > 0
    tell_of_disk(tmp_path / "gone")
    assert math.isnan(next(iter(free.collect())).samples[0].value)
