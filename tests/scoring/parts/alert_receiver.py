"""A server that takes alerts, on a port of its own."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple


class Request(NamedTuple):
    path: str
    headers: dict[str, str]
    raw: bytes

    @property
    def body(self) -> Any:
        return json.loads(self.raw)

    @property
    def key(self) -> str:
        return self.headers["idempotency-key"]


class Receiver:
    """`answers`: the statuses of the next answers, then 200; while `held` is clear, requests are not answered."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.requests: list[Request] = []
        self.answered = 0
        self.answers: list[int] = []
        self.answer_headers: dict[str, str] = {}
        self.held = threading.Event()
        self.held.set()

    @property
    def keys(self) -> list[str]:
        return [request.key for request in self.requests]


@contextmanager
def receiver() -> Iterator[Receiver]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            raw = self.rfile.read(int(self.headers["content-length"]))
            headers = {name.lower(): value for name, value in self.headers.items()}
            found.requests.append(Request(self.path, headers, raw))
            found.held.wait()
            try:
                self.send_response(found.answers.pop(0) if found.answers else 200)
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
