"""A server that takes whatever is posted to it, on a port of its own: alerts, or traces by OTLP over HTTP."""

import gzip
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span as Sent

_OK = 200


class Request(NamedTuple):
    path: str
    headers: dict[str, str]
    raw: bytes
    status: int
    """Of its answer."""

    @property
    def body(self) -> Any:
        return json.loads(self.raw)

    @property
    def key(self) -> str:
        return self.headers["idempotency-key"]


class Collected(NamedTuple):
    process: str
    span: Sent

    @property
    def name(self) -> str:
        return self.span.name

    @property
    def trace(self) -> str:
        return self.span.trace_id.hex()

    @property
    def attributes(self) -> dict[str, Any]:
        return {each.key: getattr(each.value, str(each.value.WhichOneof("value"))) for each in self.span.attributes}

    @property
    def links(self) -> list[tuple[str, str]]:
        return [(link.trace_id.hex(), link.span_id.hex()) for link in self.span.links]


class Receiver:
    """`answers`: the statuses of the next answers, then `status`; while `held` is clear, requests are not answered."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.requests: list[Request] = []
        self.answered = 0
        self.status = _OK
        self.answers: list[int] = []
        self.answer_headers: dict[str, str] = {}
        self.held = threading.Event()
        self.held.set()

    @property
    def keys(self) -> list[str]:
        return [request.key for request in self.requests]

    @property
    def spans(self) -> list[Collected]:
        """The spans of the exports that were taken."""
        taken = [request for request in list(self.requests) if request.status == _OK]
        assert {request.path for request in taken} <= {"/v1/traces"}
        return [span for request in taken for span in _spans(request.raw)]

    def of_trace(self, trace: str) -> dict[str, Collected]:
        """Return the spans of a trace, the last of each name."""
        return {each.name: each for each in self.spans if each.trace == trace}


def _spans(raw: bytes) -> Iterator[Collected]:
    for each in ExportTraceServiceRequest.FromString(gzip.decompress(raw)).resource_spans:
        process = next(a.value.string_value for a in each.resource.attributes if a.key == "service.instance.id")
        yield from (Collected(process, span) for scope in each.scope_spans for span in scope.spans)


@contextmanager
def receiver() -> Iterator[Receiver]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            raw = self.rfile.read(int(self.headers["content-length"]))
            headers = {name.lower(): value for name, value in self.headers.items()}
            status = found.answers.pop(0) if found.answers else found.status
            found.requests.append(Request(self.path, headers, raw, status))
            found.held.wait()
            try:
                self.send_response(status)
                for name, value in found.answer_headers.items():
                    self.send_header(name, value)
                self.end_headers()
                found.answered += 1
            except OSError:  # who asked is gone
                self.close_connection = True

        def log_message(self, *_: Any) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    found = Receiver(f"http://127.0.0.1:{server.server_address[1]}")
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield found
    finally:
        found.held.set()
        server.shutdown()
        thread.join()
        server.server_close()
