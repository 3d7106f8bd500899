"""An export that comes again, or is large, or many at once, counts each event once."""

import asyncio
import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from api_harness import Service, serve
from exports import SPEC, UNKNOWN, Program, counted, outcomes, turn_with_call
from opentelemetry.exporter.otlp.proto.http import Compression

from core.events import Event, Topic
from core.ports import Position

_GZIPPED = {"content-type": "application/json", "content-encoding": "gzip"}


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    with serve(tmp_path / "service", spec=SPEC) as service:
        yield service


@pytest.mark.parametrize("compression", [Compression.NoCompression, Compression.Gzip])
def test_an_export_that_is_sent_again_counts_once(service: Service, compression: Compression) -> None:
    _, call_id = turn_with_call(service)
    codex = Program(service)
    for place, decision in enumerate(("approved", "denied")):
        codex.log(
            event__name="codex.tool_decision", call_id=call_id, decision=decision, source="User", at_ns=1 + place * 1000
        )
    for _ in range(3):
        assert codex.send_logs(compression) == (0, "")
    outcomes(service, 2)
    assert codex.sent[-1].request.headers.get("content-encoding") == (
        "gzip" if compression is Compression.Gzip else None
    )


def test_in_json_it_is_the_same_event(service: Service) -> None:
    _, call_id = turn_with_call(service)
    codex = Program(service)
    span = codex.span("turn", {})
    codex.log(event__name="codex.tool_decision", call_id=call_id, decision="denied", source="User", in_span=span)
    codex.log(event__name="codex.tool_decision", decision="denied", source="User")
    assert codex.send_logs()[0] == 1
    body = codex.json()
    answer = service.http.post("/v1/logs", content=gzip.compress(json.dumps(body).encode()), headers=_GZIPPED)
    assert answer.status_code == 200
    assert answer.json() == {
        "partialSuccess": {"rejectedLogRecords": "1", "errorMessage": "became no outcome of any turn: no_id 1"}
    }
    outcomes(service, 1)
    assert service.http.post("/v1/logs", content=b"{}").json() == {}


def test_what_could_not_be_recorded_may_be_sent_again(service: Service) -> None:
    _, call_id = turn_with_call(service)
    codex = Program(service)
    codex.log(event__name="codex.tool_decision", call_id=call_id, decision="denied", source="User")
    body = json.dumps(codex.json())
    service.log.broken = True
    answer = service.http.post("/v1/logs", content=body)
    assert (answer.status_code, answer.json()["code"]) == (503, 14)
    service.log.broken = False
    assert service.http.post("/v1/logs", content=body).json() == {}
    outcomes(service, 1)


def test_what_a_replica_claimed_and_never_appended_is_appended_when_it_comes_again(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A replica that is killed before its append leaves its claim behind."""

    async def leave(*_: Any) -> None:
        return None

    monkeypatch.setattr(service.live_state, "release_claim", leave)
    _, call_id = turn_with_call(service)
    codex = Program(service)
    codex.log(event__name="codex.tool_decision", call_id=call_id, decision="denied", source="User")
    service.log.broken = True
    assert service.http.post("/v1/logs", json=codex.json()).status_code == 503
    service.log.broken = False
    assert codex.send_logs() == (0, "")
    outcomes(service, 1)


def test_what_is_in_the_log_is_not_appended_again_though_the_store_does_not_know_it_yet(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    inference_id, call_id = turn_with_call(service)
    service.turn(inference_id)
    service.writing.clear()
    appended: list[Event] = []
    append = service.log.append

    async def note(topic: Topic, event: Event) -> Position:
        appended.append(event)
        return await append(topic, event)

    monkeypatch.setattr(service.log, "append", note)
    codex = Program(service)
    codex.log(event__name="codex.tool_decision", call_id=call_id, decision="denied", source="User")
    for _ in range(2):
        assert codex.send_logs() == (0, "")
    assert len(appended) == 1


def test_more_events_than_one_export_may_have(tmp_path: Path) -> None:
    with serve(tmp_path / "service", spec=SPEC, feedback={"batch_items": 2}) as service:
        answer = service.chat("hi").json()["id"]
        program = Program(service)
        for place in range(4):
            program.log(
                event="gen_ai.evaluation.result",
                gen_ai__response__id=answer,
                gen_ai__evaluation__score__value=0.5,
                at_ns=1 + place,
            )
        assert program.send_logs() == (2, "became no outcome of any turn: too_many 2")


def test_more_spans_than_one_export_may_link_names_by(tmp_path: Path) -> None:
    with serve(tmp_path / "service", spec=SPEC, feedback={"batch_items": 1}) as service:
        program = Program(service)
        answer = service.chat("hi").headers["x-request-id"]
        for _ in range(6):
            program.span("chat", {"copilot_chat.server_request_id": answer})
            program.span("of something else", {})
        assert program.send_spans() == "linked no names, since they are too many in one export: 2 spans"


def test_an_export_beyond_the_limit_comes_again_and_counts_once(tmp_path: Path) -> None:
    keys = [
        {"key": "key-of-ada", "namespace": "ours"},
        {"key": "key-of-editor", "namespace": "ours", "requests_per_minute": 1, "burst": 2},
    ]
    with serve(tmp_path / "service", spec=SPEC, keys=keys) as service:
        service.http.headers["authorization"] = "Bearer key-of-ada"
        before = counted("gen_ai", "unknown_id")
        program = Program(service)
        for place in range(3):
            answer = UNKNOWN if place == 0 else service.chat("hi").json()["id"]
            scored = {"gen_ai__response__id": answer, "gen_ai__evaluation__score__value": 0.5}
            program.log(event="gen_ai.evaluation.result", **scored)
        editor = {"authorization": "Bearer key-of-editor"}
        limited = service.http.post("/v1/logs", json=program.json(), headers=editor)
        assert (limited.status_code, limited.json()["code"]) == (429, 8)
        assert int(limited.headers["retry-after"]) > 0
        assert counted("gen_ai", "unknown_id") == before, "it will be counted when it comes again"
        unlimited = service.http.post("/v1/logs", json=program.json())
        assert unlimited.json()["partialSuccess"]["errorMessage"] == "became no outcome of any turn: unknown_id 1"
        assert counted("gen_ai", "unknown_id") == before + 1
        outcomes(service, 2)


def test_an_export_is_digested_beside_the_event_loop(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    """And what its resource says once, for all of its events."""
    told: list[tuple[bool, str]] = []

    def dumps(said: Any, **options: Any) -> str:
        text = json.dumps(said, **options)
        told.append((asyncio._get_running_loop() is None, text))
        return text

    monkeypatch.setattr("api.feedback.reports.report.json", SimpleNamespace(dumps=dumps))
    program = Program(service, "cline", {"where": "the resource"})
    for _ in range(3):
        program.log("task.feedback", ulid="nowhere", feedbackType="thumbs_up")
    program.span("x", {}, event=("gen_ai.evaluation.result", {"gen_ai.evaluation.score.value": 1.0}))
    assert program.send_logs()[0] == 3
    assert sum("the resource" in text for _, text in told) == 1
    assert len(told) == 4
    service.post("/v1/continue/data", {"name": "editOutcome", "data": {"accepted": True}})
    assert len(told) == 5
    assert all(beside for beside, _ in told)
