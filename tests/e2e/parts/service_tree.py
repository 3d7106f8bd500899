"""A real service in its own process tree, on a directory of the test's."""

import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, NoReturn

import openai
import psutil
import pytest
from processes import words_of

START_TIMEOUT_S = 600
STOP_TIMEOUT_S = 120
Condition = Callable[[], Any]
_OF_THE_ENGINE = ("serving.model", "serving.local", "serving.context_length")
_checks: dict[str, bytes] = {}
"""The records of models that services of this run compared with transformers, by their settings of the engine."""


def wait_for(condition: Condition, timeout_s: float = 120, what: str = "the condition") -> Any:
    """Return the condition's value once it is true; it is looked at once more when its time is over."""
    deadline = time.monotonic() + timeout_s
    while True:
        is_over = time.monotonic() >= deadline  # before the look: this process itself may stand still for long
        value = condition()
        if value:
            return value
        if is_over:
            pytest.fail(f"{what} did not come true within {timeout_s} s")
        time.sleep(0.05)


class Refused(Exception):
    """An error answer, with its status and its body."""

    def __init__(self, status: int, body: Any) -> None:
        super().__init__(f"{status}: {body}")
        self.status = status
        self.body = body


def _open(request: urllib.request.Request | str) -> bytes:
    try:
        with urllib.request.urlopen(request, timeout=60) as response:
            return bytes(response.read())
    except urllib.error.HTTPError as error:
        with error:
            raise Refused(error.code, json.load(error)) from None


class Service:
    """An `onward run` process on a directory."""

    def __init__(self, directory: Path, settings: dict[str, Any]) -> None:
        self.directory = directory
        self._settings = settings
        self._process: subprocess.Popen[bytes] | None = None
        self._log = directory.with_suffix(".log")
        self._clients = ExitStack()
        self._check = directory / "model_check"
        self._engine = repr([each for each in sorted(settings.items()) if each[0].startswith(_OF_THE_ENGINE)])

    def start(self, *, ready: bool = True, port: int = 0, **settings: Any) -> "Service":
        """Start it, this time with these settings; return when all of it has started or, without `ready`, listens."""
        command = [sys.executable, "-m", "onward", "run", str(self.directory), "--port", str(port)]
        for name, value in (self._settings | {key.replace("__", "."): settings[key] for key in settings}).items():
            command += ["--set", f"{name}={value}"]
        (self.directory / "service.json").unlink(missing_ok=True)
        if self._engine in _checks and not self._check.exists():  # a comparison takes a process, and seconds
            self.directory.mkdir(exist_ok=True)
            self._check.touch(0o600)
            self._check.write_bytes(_checks[self._engine])
        with self._log.open("ab") as log:
            environment = {**os.environ, "PYTHONFAULTHANDLER": "1"}  # see `stop`
            self._process = subprocess.Popen(command, stdout=log, stderr=log, env=environment)
        wait_for(self._is_ready if ready else self._listens, START_TIMEOUT_S, "the service's readiness")
        if self._check.exists():
            _checks[self._engine] = self._check.read_bytes()
        return self

    def _listens(self) -> bool:
        assert self._process is not None
        if self._process.poll() is not None:
            pytest.fail(f"the service ended with {self._process.returncode}:\n{self.log_text()[-4000:]}")
        return (self.directory / "service.json").exists()

    def _is_ready(self) -> bool:
        if not self._listens():
            return False
        try:
            return "degraded: starting" not in self.get("/readyz")["components"].values()
        except (Refused, OSError):  # the latter where it is too busy to answer
            return False

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def url(self) -> str:
        return self.urls[0]

    @property
    def urls(self) -> list[str]:
        """Return the URLs of all replicas of its API."""
        return list(json.loads((self.directory / "service.json").read_text())["urls"])

    @property
    def overrides(self) -> dict[str, str]:
        """Return its settings as environment variables."""
        return {"ONWARD_" + name.upper().replace(".", "__"): str(value) for name, value in self._settings.items()}

    @property
    def is_alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def learner_pid(self) -> int:
        return self.child_pid("learn")

    def child_pid(self, command: str) -> int:
        """Return the pid of the child process `onward COMMAND`, once there is one."""
        return int(wait_for(lambda: next(iter(self._children(command)), None), what=f"a process of {command}"))

    def _children(self, command: str) -> list[int]:
        return [child.pid for child in psutil.Process(self.pid).children() if command in words_of(child)]

    def log_text(self) -> str:
        return self._log.read_text()

    def get(self, path: str, at: int = 0, **headers: str) -> Any:
        """Send a GET request to the replica `at` that number, and return its JSON.

        Raises Refused."""
        return json.loads(_open(urllib.request.Request(self.urls[at] + path, headers=headers)))

    def text(self, path: str) -> str:
        return _open(self.url + path).decode()

    def post(self, path: str, body: dict[str, Any], at: int = 0, **headers: str) -> Any:
        """Send a POST request to the replica `at` that number, and return its JSON.

        Raises Refused."""
        names = {name.replace("_", "-"): value for name, value in headers.items()}
        data = json.dumps(body).encode()
        return json.loads(
            _open(urllib.request.Request(self.urls[at] + path, data, {"Content-Type": "application/json", **names}))
        )

    def chat(self, text: str, at: int = 0, **fields: Any) -> Any:
        return self.post("/v1/chat/completions", {"model": "onward-tiny", "messages": [user(text)], **fields}, at)

    def client(self) -> openai.OpenAI:
        """Return a client of the official library, which is closed when the service is stopped."""
        return self._clients.enter_context(openai.OpenAI(base_url=self.url + "/v1", api_key="unused"))

    def kill(self) -> None:
        """Kill the service with SIGKILL, if it runs, and wait for the end of its child processes, which follows."""
        assert self._process is not None
        if self._process.poll() is not None:
            return
        children = [*self._children("learn"), *self._children("api")]
        self._process.send_signal(signal.SIGKILL)
        self._process.wait(120)
        wait_for(lambda: not any(_alive(pid) for pid in children), what="the end of its children")

    def stop(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                self._fail_with_stacks()
        self._clients.close()

    def _fail_with_stacks(self) -> NoReturn:
        """Fail with what each thread of a service that does not end is doing."""
        assert self._process is not None
        processes = [psutil.Process(self.pid), *psutil.Process(self.pid).children(recursive=True)]
        said = len(self.log_text())
        for process in reversed(processes):
            with suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGABRT)
        self._process.wait(30)
        pytest.fail(
            f"the service did not end within {STOP_TIMEOUT_S} s:\n{self.log_text()[max(0, said - 2000) :][:30000]}"
        )


def _alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def simulate(
    service: Service, output: Path, seconds: float, rate: float, seed: int = 0, script: str | None = None
) -> "subprocess.Popen[bytes]":
    """Start simulated users in a process of their own, as of `python -m simulator` or of a script with its options."""
    command = [sys.executable, *([script] if script else ["-m", "simulator"]), "--seconds", str(seconds)]
    for url in service.urls:
        command += ["--url", url]
    command += ["--rate", str(rate), "--seed", str(seed), "--output", str(output)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=dict(os.environ))
