"""`/metrics`, `/healthz` and `/readyz` of a stage that is no HTTP service, or is none yet."""

import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler

from core.errors import ConfigError
from core.network.threading_server import ThreadingServer
from core.settings import ApiSettings, MetricsSettings
from core.telemetry import CONTENT_TYPE, exposition
from onward.http.tls import server_context

OK = "ok"
_LOOK_S = 0.5  # whether it is to end
_STALLED_S = 10.0  # who sends or takes nothing for so long is given up
_MOST_UNREAD = 4 << 20  # bytes of a body that nobody wants
_PIECE = 1 << 16
_MOST_DIGITS = 19


@contextmanager
def metrics_server(settings: MetricsSettings, name: str, state: Callable[[], str]) -> Iterator[None]:
    """`state`: of the stage, `ok` or what is wrong; asked from other threads. Raises ConfigError for a port in use."""
    if settings.port is None:
        yield
        return
    with _serving(_bind("metrics.port", settings.host, settings.port, _handler(name, state))):
        yield


@contextmanager
def waiting_server(
    settings: ApiSettings, name: str, state: Callable[[], str], listener: socket.socket | None = None
) -> Iterator[None]:
    """Serve the same at the API's address while the API cannot start; other requests are answered with 503.

    `listener` listens there already, and does so afterwards."""
    ours = None if listener is None else listener.dup()
    server = _bind("api.port", settings.host, settings.port, _handler(name, state, is_waiting=True), ours)
    tls = server_context(settings.tls)
    if tls is not None:  # hands are shaken in the thread that answers
        server.socket = tls.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    with _serving(server):
        yield


def _bind(
    setting: str, host: str, port: int, handler: type[BaseHTTPRequestHandler], listener: socket.socket | None = None
) -> ThreadingServer:
    try:
        return ThreadingServer(host, port, handler, listener)
    except OSError as error:
        raise ConfigError(f"{setting}: {host}:{port}: {error.strerror}") from error


@contextmanager
def _serving(server: ThreadingServer) -> Iterator[None]:
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(_LOOK_S,), name="metrics", daemon=True)
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()


def _handler(name: str, state: Callable[[], str], *, is_waiting: bool = False) -> type[BaseHTTPRequestHandler]:
    class MetricsHandler(BaseHTTPRequestHandler):
        timeout = _STALLED_S

        def do_GET(self) -> None:
            match self.path:
                case "/metrics":
                    self._answer(200, CONTENT_TYPE, exposition(named=not is_waiting))
                case "/healthz":
                    self._answer_json(200, {"status": OK})
                case "/readyz":
                    found = state()
                    status = OK if found == OK else "not ready"
                    self._answer_json(200 if found == OK else 503, {"status": status, "components": {name: found}})
                case _:
                    self._answer_elsewhere()

        def do_POST(self) -> None:
            self._drop_body()
            self._answer_elsewhere()

        do_PUT = do_DELETE = do_POST

        def _drop_body(self) -> None:
            """Read the body and keep none of it: who still sends would not see the answer."""
            said = self.headers.get("Content-Length", "")
            is_length = said.isascii() and said.isdigit() and len(said) <= _MOST_DIGITS
            left = min(int(said), _MOST_UNREAD) if is_length else 0
            with suppress(ConnectionError):
                while left and (part := self.rfile.read(min(left, _PIECE))):
                    left -= len(part)

        def _answer_elsewhere(self) -> None:
            if is_waiting:  # in the words of the API
                error = {"message": state(), "type": "server_error", "param": None, "code": "unavailable"}
                self._answer_json(503, {"error": error})
            else:
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

    return MetricsHandler
