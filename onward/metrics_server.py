"""`/metrics`, `/healthz` and `/readyz` of a stage that is no HTTP service."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from core.errors import ConfigError
from core.settings import MetricsSettings
from core.telemetry import CONTENT_TYPE, exposition

OK = "ok"


@contextmanager
def metrics_server(settings: MetricsSettings, name: str, state: Callable[[], str]) -> Iterator[None]:
    """`state`: of the stage, `ok` or what is wrong; asked from other threads. Raises ConfigError for a port in use."""
    if settings.port is None:
        yield
        return
    try:
        server = ThreadingHTTPServer((settings.host, settings.port), _handler(name, state))
    except OSError as error:
        raise ConfigError(f"metrics.port: {settings.host}:{settings.port}: {error.strerror}") from error
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, name="metrics", daemon=True)
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()


def _handler(name: str, state: Callable[[], str]) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            match self.path:
                case "/metrics":
                    self._answer(200, CONTENT_TYPE, exposition())
                case "/healthz":
                    self._answer_json(200, {"status": OK})
                case "/readyz":
                    found = state()
                    status = OK if found == OK else "not ready"
                    self._answer_json(200 if found == OK else 503, {"status": status, "components": {name: found}})
                case _:
                    self._answer_json(404, {"error": {"message": f"no {self.path} here"}})

        def _answer_json(self, status: int, body: object) -> None:
            self._answer(status, "application/json", json.dumps(body).encode())

        def _answer(self, status: int, kind: str, body: bytes) -> None:
            with suppress(ConnectionError):  # who asked has gone
                self.send_response(status)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Scrapes are no news."""

    return Handler
