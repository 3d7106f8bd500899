"""Exports that are no exports, or too large, get a status in the shape that exporters read."""

import gzip
import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from api_harness import Service, serve, wait_for
from exports import SPEC, UNKNOWN, Program
from google.protobuf import json_format
from google.protobuf.message import Message
from google.rpc.status_pb2 import Status
from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest

from api.feedback.reports.otlp.wire import read_export
from core.errors import InvalidRequest, TooLarge
from core.telemetry import BODY_BYTES

PROTOBUF, JSON = "application/x-protobuf", "application/json"


def _gzipped(kind: str) -> dict[str, str]:
    return {"content-type": kind, "content-encoding": "gzip"}


def nested(depth: int) -> dict[str, Any]:
    value: dict[str, Any] = {"stringValue": "x"}
    for _ in range(depth):
        value = {"arrayValue": {"values": [value]}}
    return {"resourceLogs": [{"scopeLogs": [{"logRecords": [{"body": value}]}]}]}


def deep_protobuf(depth: int) -> bytes:
    """Return a log whose body is nested, without the library, which refuses to make one."""
    value = b"\x0a\x01x"
    for _ in range(depth):
        inner = _field(1, value)  # ArrayValue.values
        value = _field(5, inner)  # AnyValue.array_value
    return _field(1, _field(2, _field(2, _field(5, value))))


def _field(number: int, content: bytes) -> bytes:
    size, length = len(content), b""
    while size > 0x7F:
        length += bytes([size & 0x7F | 0x80])
        size >>= 7
    return bytes([number << 3 | 2]) + length + bytes([size]) + content


def test_the_nested_body_is_one() -> None:
    assert (
        ExportLogsServiceRequest.FromString(deep_protobuf(3))
        .resource_logs[0]
        .scope_logs[0]
        .log_records[0]
        .HasField("body")
    )


HOSTILE = [
    (PROTOBUF, b"\xff\xff\xff", {}, 400),
    (PROTOBUF, b"\x0a\xff\xff\xff\xff\x0f", {}, 400),
    (PROTOBUF, deep_protobuf(5_000), {}, 400),
    (PROTOBUF, b"not gzip", {"content-encoding": "gzip"}, 400),
    (PROTOBUF, gzip.compress(b"\0" * 4096, mtime=0)[:-9], {"content-encoding": "gzip"}, 400),
    (PROTOBUF, gzip.compress(bytes(64 << 20), mtime=0), {"content-encoding": "gzip"}, 413),
    (PROTOBUF, bytes(5 << 20), {}, 413),
    (PROTOBUF, b"\x0a\0" * 150_000, {}, 413),  # resources, all empty
    (PROTOBUF, b"", {"content-encoding": "br"}, 415),
    (JSON, b"[" * 90_000, {}, 400),
    (JSON, b'{"resourceLogs": 7}', {}, 400),
    (JSON, b'{"resourceLogs": [{"scopeLogs": [{"logRecords": [{"traceId": "xyz"}]}]}]}', {}, 400),
    (JSON, b'{"resourceLogs": [{"scopeLogs": [{"logRecords": [{"timeUnixNano": "soon"}]}]}]}', {}, 400),
    (JSON, json.dumps(nested(150)).encode(), {}, 400),
    (JSON, b"\xff", {}, 400),
    (JSON, b"[" + b"7," * 150_000 + b"7]", {}, 413),
]


@pytest.mark.parametrize(("kind", "body", "headers", "status"), HOSTILE)
@pytest.mark.parametrize("path", ["/v1/logs", "/v1/traces"])
def test_hostile_bodies_get_a_status(
    quick_service: Service, path: str, kind: str, body: bytes, headers: dict[str, str], status: int
) -> None:
    if path == "/v1/traces":
        body = body.replace(b"resourceLogs", b"resourceSpans").replace(b"scopeLogs", b"scopeSpans")
        body = body.replace(b"logRecords", b"spans").replace(b"timeUnixNano", b"startTimeUnixNano")
        if b"body" in body or (len(body) > 10_000 and kind == PROTOBUF and status == 400):
            pytest.skip("a span has no body")
    answer = quick_service.http.post(path, content=body, headers={"content-type": kind, **headers})
    assert answer.status_code == status, answer.content
    assert answer.headers["content-type"] == kind
    if kind == PROTOBUF:
        told = Status.FromString(answer.content)
        assert (told.code in (3, 8), bool(told.message)) == (True, True)
    else:
        assert answer.json().keys() == {"code", "message"}


@pytest.mark.parametrize("kind", [5, 6])  # an array, a list of pairs
def test_values_within_a_value_are_counted(quick_service: Service, kind: int) -> None:
    body = _field(1, _field(2, _field(2, _field(5, _field(kind, b"\x0a\0" * 150_000)))))
    answer = quick_service.http.post("/v1/logs", content=body, headers={"content-type": PROTOBUF})
    assert (answer.status_code, Status.FromString(answer.content).code) == (413, 8)


def fields_in(message: Message) -> int:
    """Return how many fields there are in a message, as the library sees them once it has made it."""
    found = 0
    for field, value in message.ListFields():
        for each in value if field.is_repeated else [value]:
            found += 1 + (fields_in(each) if isinstance(each, Message) else 0)
    return found


def test_the_fields_of_a_protobuf_are_counted_before_any_of_it_is_made() -> None:
    class Unread:
        DESCRIPTOR = ExportLogsServiceRequest.DESCRIPTOR

        def ParseFromString(self, raw: bytes) -> None:
            raise AssertionError("it was made")

    export = json_format.ParseDict(nested(7), ExportLogsServiceRequest())
    record = export.resource_logs[0].scope_logs[0].log_records.add(time_unix_nano=7, flags=3, trace_id=b"\0" * 16)
    for number in range(9):
        record.attributes.add(key=f"{number}").value.double_value = number
    raw, fields = export.SerializeToString(), fields_in(export)
    assert read_export(ExportLogsServiceRequest, b"application/x-protobuf", raw, fields) == export
    kind: Any = Unread
    for body, most in ((raw, fields - 1), (b"\x0a\0" * 11, 10), (b"\x38\x01" * 11, 10)):
        with pytest.raises(TooLarge, match="more than"):
            read_export(kind, b"application/x-protobuf", body, most)
    for broken in (raw[:-1], b"\x0b\x0c", b"\x0a" + b"\x80" * 10 + b"\1", b"\x0e", b"\x80"):
        with pytest.raises(InvalidRequest, match="no protobuf"):
            read_export(kind, b"application/x-protobuf", broken, 10**6)


def test_a_long_name_is_none_and_takes_no_memory(quick_service: Service) -> None:
    """It names nothing, and nothing is remembered by it."""
    long, answer = "c" * 100_000, quick_service.chat("hi").headers["x-request-id"]
    program, before = Program(quick_service), quick_service.live_state._claims._weight
    named = {"gen_ai.response.id": long, "gen_ai.conversation.id": long, "copilot_chat.server_request_id": answer}
    program.span("chat", named)
    assert program.send_spans() == ""
    assert quick_service.live_state._claims._weight - before < len(long)
    program.log(event__name="copilot_chat.edit.feedback", outcome="accepted", request_id=long)
    assert program.send_logs() == (1, "became no outcome of any turn: no_id 1")


@pytest.mark.parametrize("more", [gzip.compress(b"", mtime=0), b"x"])
def test_nothing_behind_the_gzip_is_dropped(quick_service: Service, more: bytes) -> None:
    answer = quick_service.http.post("/v1/logs", content=gzip.compress(b"{}") + more, headers=_gzipped(JSON))
    assert (answer.status_code, "one member" in answer.json()["message"]) == (400, True)


def test_what_was_compressed_takes_its_room(tmp_path: Path) -> None:
    """As long as it is worked on: here, while a turn is waited for that the store does not have yet."""
    size = 3 << 20
    large = gzip.compress(_field(1, _field(2, _field(2, _field(5, _field(1, bytes(size)))))))
    bodies = {"in_flight_bytes": 4 << 20, "max_bytes": 4 << 20}
    settings = {"bodies": bodies, "feedback": {"lookup_s": 60}}
    with serve(tmp_path / "service", spec=SPEC, **settings) as service, ThreadPoolExecutor(1) as pool:
        service.turn(service.chat("hi").headers["x-onward-inference-id"])
        service.writing.clear()
        service.chat("not in the store")
        program = Program(service)
        scored = {"gen_ai__response__id": UNKNOWN, "gen_ai__evaluation__score__value": 1.0}
        program.log("x" * size, event="gen_ai.evaluation.result", **scored)
        waiting = pool.submit(program.send_logs, Compression.Gzip)
        wait_for(lambda: BODY_BYTES._value.get() > size, "what was decompressed")
        refused = service.http.post("/v1/logs", content=large, headers=_gzipped(PROTOBUF))
        assert refused.status_code == 503
        service.writing.set()
        waiting.result()
        assert service.http.post("/v1/logs", content=large, headers=_gzipped(PROTOBUF)).status_code == 200


def test_other_types_are_refused_in_the_same_shape(quick_service: Service) -> None:
    answer = quick_service.http.post("/v1/logs", content=b"x", headers={"content-type": "text/plain"})
    assert (answer.status_code, answer.json()["code"]) == (415, 3)
    elsewhere = quick_service.http.post("/v1/feedback", content=b"x", headers={"content-type": PROTOBUF})
    assert (elsewhere.status_code, "error" in elsewhere.json()) == (415, True)


def test_strangers_get_a_status(make_service: Callable[..., Service]) -> None:
    service = make_service(keys=[{"key": "key-of-ada", "namespace": "ada", "scopes": ["chat"]}])
    stranger = service.http.post("/v1/logs", content=b"", headers={"content-type": PROTOBUF})
    assert (stranger.status_code, Status.FromString(stranger.content).code) == (401, 16)
    ada = {"content-type": PROTOBUF, "authorization": "Bearer key-of-ada"}
    lacking = service.http.post("/v1/logs", content=b"", headers=ada)
    assert (lacking.status_code, Status.FromString(lacking.content).code) == (403, 7)
