"""A collector of traces: takes OTLP over HTTP, on a port of its own."""

import gzip
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span as Sent


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


class Collector:
    def __init__(self, url: str) -> None:
        self.url = url
        self.spans: list[Collected] = []
        self.headers: list[dict[str, str]] = []
        self.answers = True  # False: it is told that this one is overloaded

    def of_trace(self, trace: str) -> dict[str, Collected]:
        """Return the spans of a trace, the last of each name."""
        return {each.name: each for each in list(self.spans) if each.trace == trace}


@contextmanager
def collector() -> Iterator[Collector]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            raw = self.rfile.read(int(self.headers["content-length"]))
            if found.answers:
                assert self.path == "/v1/traces"
                found.headers.append({name.lower(): value for name, value in self.headers.items()})
                request = ExportTraceServiceRequest.FromString(gzip.decompress(raw))
                found.spans += [
                    Collected(
                        next(a.value.string_value for a in each.resource.attributes if a.key == "service.instance.id"),
                        span,
                    )
                    for each in request.resource_spans
                    for scope in each.scope_spans
                    for span in scope.spans
                ]
            self.send_response(200 if found.answers else 503)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    found = Collector(f"http://127.0.0.1:{server.server_address[1]}")
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield found
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
