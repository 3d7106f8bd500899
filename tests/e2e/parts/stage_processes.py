"""Stages as processes of their own, owned by the test."""

import json
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import pytest
from service_tree import Refused, wait_for

from onward.directory.layout import Layout

READY_TIMEOUT_S = 600


def ask(url: str, body: Mapping[str, Any], headers: Mapping[str, str] | None = None) -> Any:
    """Send a POST request and return its JSON.

    Raises Refused."""
    data = json.dumps(body).encode()
    return json.loads(_read(urllib.request.Request(url, data, {"Content-Type": "application/json", **(headers or {})})))


def _read(request: urllib.request.Request) -> bytes:
    try:
        with urllib.request.urlopen(request, timeout=60) as response:
            return bytes(response.read())
    except urllib.error.HTTPError as error:
        with error:
            raise Refused(error.code, json.load(error)) from None


class StageProcess:
    """An `onward COMMAND DIRECTORY` process, which dies with the test's process."""

    def __init__(self, command: str, directory: Path, name: str, settings: Mapping[str, Any], *more: str) -> None:
        self.name, self._layout = name, Layout(directory.resolve())
        self._log = directory.with_name(f"{directory.name}.{name}.log")
        self._command = [sys.executable, "-m", "onward", command, str(directory), "--child", name, *more]
        for key, value in settings.items():
            self._command += ["--set", f"{key}={value}"]
        self.process = self._start()

    def _start(self) -> "subprocess.Popen[bytes]":
        with self._log.open("ab") as log:
            return subprocess.Popen(self._command, stdout=log, stderr=log)

    @property
    def is_ready(self) -> bool:
        if self.process.poll() is not None:
            pytest.fail(f"{self.name} ended with {self.process.returncode}:\n{self.log_text()[-4000:]}")
        try:
            return int(self._layout.ready(self.name).read_text()) == self.process.pid
        except (FileNotFoundError, ValueError):
            return False

    def wait_ready(self) -> "StageProcess":
        wait_for(lambda: self.is_ready, READY_TIMEOUT_S, f"{self.name}'s readiness")
        return self

    def log_text(self) -> str:
        return self._log.read_text()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(120)

    def restart(self) -> "StageProcess":
        self.process = self._start()
        return self

    def stop(self, timeout_s: float = 120) -> int:
        """Stop it with SIGTERM; return its exit code."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.terminate()
        return self.process.wait(timeout_s)

    def __enter__(self) -> "StageProcess":
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.stop()


class ApiProcess(StageProcess):
    """One replica of the API."""

    def __init__(self, directory: Path, name: str, settings: Mapping[str, Any]) -> None:
        super().__init__("api", directory, name, settings, "--port", "0")

    @property
    def url(self) -> str:
        found = self._layout.apis.glob(f"*-{self.process.pid}.json")
        return str(json.loads(next(found).read_text())["url"])

    def get(self, path: str) -> Any:
        """Send a GET request and return its JSON.

        Raises Refused."""
        return json.loads(self.text(path))

    def text(self, path: str) -> str:
        """Send a GET request and return its body.

        Raises Refused."""
        return _read(urllib.request.Request(self.url + path)).decode()

    def post(self, path: str, body: Mapping[str, Any], **headers: str) -> Any:
        """Send a POST request and return its JSON.

        Raises Refused."""
        names = {name.replace("_", "-"): value for name, value in headers.items()}
        return ask(self.url + path, body, names)

    def chat(self, text: str, **fields: Any) -> Any:
        body = {"model": "onward-tiny", "messages": [{"role": "user", "content": text}], **fields}
        return self.post("/v1/chat/completions", body)

    @property
    def readiness(self) -> dict[str, str]:
        try:
            return dict(self.get("/readyz")["components"])
        except Refused as refused:
            return dict(refused.body["components"])
