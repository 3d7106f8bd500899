"""The API's HTTP server: its event loop and TLS."""

import json
import socket
import ssl
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest
from made_certificates import made

from core.errors import ConfigError, OnwardError
from core.network.threading_server import ThreadingServer
from core.settings import ApiSettings, TlsSettings, load_settings
from core.stages.ending import Ending
from onward.commands.client import call
from onward.directory.addresses import free_port, write_address
from onward.directory.layout import Layout
from onward.http.listeners import held
from onward.http.metrics_server import waiting_server
from onward.http.tls import client_context, server_context
from onward.processes.runtime import run_api, run_service

PROGRAM = """
import asyncio, json, sys
from contextlib import nullcontext
from core.settings import ApiSettings
from onward.http.listeners import listen
from onward.http.server import HttpServer

async def app(scope, receive, send):
    if scope["type"] == "lifespan":
        while True:
            kind = (await receive())["type"]
            await send({"type": kind + ".complete"})
            if kind == "lifespan.shutdown":
                return
    loops = [each.__module__ for each in type(asyncio.get_running_loop()).__mro__]
    body = json.dumps({"loops": loops, "scheme": scope["scheme"]}).encode()
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % len(body))]})
    await send({"type": "http.response.body", "body": body})

settings = ApiSettings.model_validate_json(sys.argv[1])
server = HttpServer(app, settings, listen(settings, settings.port))
server.run(lambda: print(server.url, flush=True), nullcontext())
print("stopped", flush=True)
"""


@contextmanager
def serving(**settings: Any) -> Iterator[str]:
    """Run a server in a process of its own and yield its URL."""
    command = [sys.executable, "-c", PROGRAM, json.dumps({"port": 0, **settings})]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.terminate()
            assert "stopped" in process.stdout.read()


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Return settings that name a freshly made certificate and its key."""
    return made(tmp_path_factory.mktemp("tls"))


def ask(url: str, certificate: str) -> Any:
    context = ssl.create_default_context(cafile=certificate)
    with urllib.request.urlopen(url, timeout=120, context=context) as response:
        return json.load(response)


def test_the_api_runs_on_uvloop() -> None:
    with serving() as url, urllib.request.urlopen(url, timeout=120) as response:
        said = json.load(response)
    assert any(module.startswith("uvloop") for module in said["loops"])
    assert said["scheme"] == "http"


def test_commands_reach_a_server_on_ipv6_past_a_proxy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    with serving(host="::1") as url:
        assert url.startswith("http://[::1]:")
        write_address(Layout(tmp_path).address, url)
        assert call(tmp_path, "GET", "/", None)["scheme"] == "http"
    with waiting_server(ApiSettings(host="::1", port=free_port("::1")), "api", lambda: "waits"):
        pass


@pytest.mark.parametrize("status", [200, 502])
def test_what_is_no_answer_of_ours_is_told_in_a_line(tmp_path: Path, status: int) -> None:
    class Proxy(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.end_headers()
            self.wfile.write(b"<html>Bad Gateway</html>")

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingServer("127.0.0.1", 0, Proxy) as server:
        thread = threading.Thread(target=server.handle_request)
        thread.start()
        write_address(Layout(tmp_path).address, f"http://127.0.0.1:{server.server_port}")
        with pytest.raises(OnwardError, match="is there a proxy between"):
            call(tmp_path, "GET", "/v1/status", None)
        thread.join()


def test_tls_and_who_never_shakes_hands(pair: dict[str, str], tmp_path: Path) -> None:
    with serving(tls=pair, connections={"header_s": 120.0}) as url:  # which others' handshakes may take, too
        assert url.startswith("https://127.0.0.1:")
        with silent_connection(url):
            assert ask(url, pair["certificate"])["scheme"] == "https"
        layout = Layout(tmp_path)
        write_address(layout.address, url, certificate=Path(pair["certificate"]))
        assert call(tmp_path, "GET", "/", None)["scheme"] == "https"
        (tmp_path / "other").mkdir()
        another = made(tmp_path / "other")["certificate"]
        with pytest.raises(urllib.error.URLError, match="certificate verify failed"):
            ask(url, another)
    with serving(tls=pair, connections={"header_s": 0.2}) as url, silent_connection(url) as silent:
        assert silent.recv(1) == b""


def silent_connection(url: str) -> socket.socket:
    return socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2])), timeout=120)


def test_who_waits_speaks_tls_too(pair: dict[str, str]) -> None:
    port = free_port("127.0.0.1")
    settings = ApiSettings.model_validate({"port": port, "tls": pair})
    with held(settings) as listeners:
        with waiting_server(settings, "start", lambda: "the log is away", *listeners):
            with (
                socket.create_connection(("127.0.0.1", port), timeout=120),  # who never shakes hands keeps nobody
                pytest.raises(urllib.error.HTTPError) as refused,
            ):
                ask(f"https://127.0.0.1:{port}/readyz", pair["certificate"])
            with refused.value as answer:
                assert json.load(answer)["components"] == {"start": "the log is away"}
        with silent_connection(f":{port}"), listeners[0].accept()[0]:
            pass  # the address was handed back


def test_who_waits_keeps_nobodys_body_and_waits_for_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    port = free_port("127.0.0.1")
    with waiting_server(ApiSettings(port=port), "start", lambda: "the log is away"):
        for length in ("-1", "many", str(1 << 50)):
            for method in ("POST", "DELETE"):
                with silent_connection(f":{port}") as client:
                    client.sendall(f"{method} /v1/feedback HTTP/1.1\r\nContent-Length: {length}\r\n\r\n{{".encode())
                    if length.isdigit():
                        client.shutdown(socket.SHUT_WR)
                    assert b"503" in client.recv(1000).partition(b"\r\n")[0], (method, length)
    monkeypatch.setattr("core.network.threading_server._AT_ONCE", 2)
    with (
        waiting_server(ApiSettings(port=port), "start", lambda: "the log is away"),
        silent_connection(f":{port}"),
        silent_connection(f":{port}"),
        silent_connection(f":{port}") as third,
    ):
        assert third.recv(1) == b""
    monkeypatch.setattr("onward.http.metrics_server._STALLED_S", 0.05)
    with (
        waiting_server(ApiSettings(port=port), "start", lambda: "the log is away"),
        silent_connection(f":{port}") as silent,
    ):
        assert silent.recv(1) == b""


def test_without_tls_there_is_none() -> None:
    assert server_context(TlsSettings()) is None


def test_commands_trust_no_other_certificate(pair: dict[str, str], tmp_path: Path) -> None:
    another = client_context(Path(made(tmp_path)["certificate"]))
    failed = []

    def shake(client: socket.socket) -> None:
        try:
            another.wrap_socket(client, server_hostname="127.0.0.1")
        except ssl.SSLCertVerificationError as error:
            failed.append(error)
        client.close()

    context = server_context(TlsSettings.model_validate(pair))
    assert context is not None
    ours, theirs = socket.socketpair()
    thread = threading.Thread(target=shake, args=(theirs,))
    thread.start()
    with ours, pytest.raises((ssl.SSLError, ConnectionError)):
        context.wrap_socket(ours, server_side=True).recv(1)
    thread.join()
    assert failed


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"key": None}, "api.tls: .*key: certificate and key, both or neither"),
        ({"certificate": None}, "api.tls: .*certificate: certificate and key, both or neither"),
        ({"key": "nowhere.pem"}, "api.tls.key: nowhere.pem: No such file"),
        ({"certificate": "nowhere.pem"}, "api.tls.certificate: nowhere.pem: No such file"),
        ({"certificate": __file__}, "no PEM certificate and its unencrypted key"),
        ({"key": "another"}, "no PEM certificate and its unencrypted key"),
    ],
)
def test_what_is_wrong_with_them_is_said(
    pair: dict[str, str], tmp_path: Path, change: dict[str, str | None], said: str
) -> None:
    if change.get("key") == "another":
        change = {"key": made(tmp_path)["key"]}
    values = {name: value for name, value in {**pair, **change}.items() if value is not None}
    with pytest.raises(ConfigError, match=said):
        server_context(load_settings(None, {f"ONWARD_API__TLS__{n.upper()}": v for n, v in values.items()}).api.tls)


class Loads(Exception):
    """A start got as far as to load something."""


@pytest.mark.parametrize(("start", "of"), [("run", 1), ("run", 2), ("api", 1), ("tree", 1), ("tree", 2)])
def test_of_two_starts_at_once_the_second_ends_before_it_loads_anything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, start: str, of: int
) -> None:
    """The second comes while the first loads: it ends with its line, and who connects to the first waits for it.

    `of`: how many processes answer; the second start wants the last one's port."""
    port = two_ports()
    chosen = {"ONWARD_API__PORT": str(port), "ONWARD_PROCESSES__API": str(of)}
    if start == "tree":
        chosen |= {"ONWARD_MODE": "distributed", "ONWARD_SERVING__ENGINE": "sglang"}
    began = run_api if start == "api" else run_service
    loaded: list[Path] = []

    def load(*_: object) -> None:
        loaded.append(tmp_path)
        if len(loaded) == 1:
            with pytest.raises(ConfigError, match=rf"^api\.port: cannot listen at 127.0.0.1:{port + of - 1}: "):
                began(tmp_path / "second", chosen | {"ONWARD_API__PORT": str(port + of - 1)})
            silent_connection(f":{port + of - 1}").close()
        raise Loads

    monkeypatch.setattr("onward.processes.runtime.open_foundation", load)
    monkeypatch.setattr("onward.processes.tree.migrate", load)
    monkeypatch.setattr("onward.processes.tree.told_by_signals", Ending)
    with pytest.raises(Loads):
        began(tmp_path / "first", chosen)
    assert len(loaded) == 1
    with held(ApiSettings(port=port), of):
        pass  # it has let go of all


def two_ports() -> int:
    """Return a port that nobody listens at, nor at the next."""
    while True:
        port = free_port("127.0.0.1")
        with suppress(OSError), socket.create_server(("127.0.0.1", port + 1)):
            return port


def test_a_taken_port_is_refused_in_a_line_before_anything_is_opened(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(
            ConfigError, match=rf"^api\.port: cannot listen at 127.0.0.1:{port}: Address already in use$"
        ):
            run_service(tmp_path, {"ONWARD_API__PORT": str(port)})
        second = {"ONWARD_API__PORT": str(port - 1), "ONWARD_PROCESSES__API": "2"}
        with pytest.raises(ConfigError, match=rf"^api\.port: cannot listen at 127.0.0.1:({port}|{port - 1}): "):
            run_service(tmp_path, second)
    last = {"ONWARD_API__PORT": "65535", "ONWARD_PROCESSES__API": "2"}
    with pytest.raises(ConfigError, match=r"^api\.port: 65535: 2 processes that answer need as many ports"):
        run_service(tmp_path, last)
    with pytest.raises(ConfigError, match=r"^settings: processes\.api: 0: "):
        run_service(tmp_path, {"ONWARD_API__PORT": "0", "ONWARD_PROCESSES__API": "0"})
    assert not Layout.of(tmp_path).store.exists()
    with pytest.raises(ConfigError, match=r"^api\.port: cannot listen at 192\.0\.2\.1:0: "):  # nobody's (RFC 5737)
        run_service(tmp_path, {"ONWARD_API__HOST": "192.0.2.1", "ONWARD_API__PORT": "0"})
