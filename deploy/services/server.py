"""One server process in a directory of its own: started, found again by its pid, stopped, killed."""

import json
import os
import secrets
import signal
import socket
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 30.0
PORT_TIMEOUT_S = 10.0
_FIRST_PORT, _PORTS = 20_000, 12_000  # below those that Linux hands out by itself
_TRIES = 100


class ServiceError(Exception):
    """An error whose message is for the user."""


class Server(ABC):
    """A server process; `up` and `down` may be repeated.

    Ports are chosen where nobody listens, and kept so that clients find the server again."""

    name: str
    port_names: Sequence[str] = ("port",)
    stop_signal = signal.SIGTERM

    def __init__(self, directory: Path) -> None:
        self.directory = directory.resolve()
        self.log = self.directory / "log"
        self._state = self.directory / "server.json"

    # ------------------------------------------------------------------------------------------ of each kind

    @abstractmethod
    def prepare(self) -> None:
        """Make data and configuration, if they are not there."""

    @abstractmethod
    def spawn(self) -> int:
        """Start the process and return its pid."""

    @abstractmethod
    def mark(self) -> str:
        """Return a text that only this server's command line contains."""

    # ------------------------------------------------------------------------------------------ all alike

    @property
    def ports(self) -> dict[str, int]:
        return dict(self._read().get("ports", {}))

    @property
    def address(self) -> str:
        """The address HOST:PORT."""
        return f"127.0.0.1:{self.ports['port']}"

    @property
    def pid(self) -> int:
        return int(self._read().get("pid", 0))

    @property
    def alive(self) -> bool:
        return self.pid > 0 and self.mark() in command_line(self.pid)

    def up(self) -> None:
        """Start the server and return when it answers. Raises ServiceError with the end of the server's log."""
        if self.alive:
            return
        self.directory.mkdir(parents=True, exist_ok=True)
        self.wait(lambda: not is_zombie(self.pid), STOP_TIMEOUT_S, "go away")  # PostgreSQL would take it for alive
        kept = self.ports
        self._wait_for_ports(kept)
        self._write(0, {name: choose_port(kept.get(name)) for name in self.port_names})
        self.prepare()
        self._write(self.spawn(), self.ports)
        self.wait(lambda: answers(self.ports["port"]) or not self.alive, START_TIMEOUT_S, "answer")
        if not self.alive:
            raise ServiceError(f"{self.name} ended at its start; {self.log} ends with:\n{tail(self.log)}")

    def down(self) -> None:
        if self.alive:
            os.kill(self.pid, self.stop_signal)
            self.wait(lambda: not self.alive, STOP_TIMEOUT_S, "stop")

    def kill(self) -> None:
        """Send SIGKILL, as in a crash."""
        if self.alive:
            os.kill(self.pid, signal.SIGKILL)
            self.wait(lambda: not self.alive, STOP_TIMEOUT_S, "die")

    def wait(self, condition: Callable[[], bool], timeout_s: float, what: str) -> None:
        """Wait until the condition is true. Raises ServiceError, saying that `what` did not happen, on a timeout."""
        deadline = time.monotonic() + timeout_s
        while not condition():
            if time.monotonic() > deadline:
                raise ServiceError(f"{self.name} did not {what} within {timeout_s:g} s; see {self.log}")
            time.sleep(0.02)

    def _wait_for_ports(self, kept: Mapping[str, int]) -> None:
        """Wait a moment for the kept ports, which a killed process may still hold.

        A process that holds them for good is not waited for."""
        with suppress(ServiceError):
            self.wait(lambda: all(map(is_free, kept.values())), PORT_TIMEOUT_S, "get its ports back")

    def _read(self) -> dict[str, object]:
        return json.loads(self._state.read_text()) if self._state.exists() else {}

    def _write(self, pid: int, ports: Mapping[str, int]) -> None:
        whole = self._state.with_suffix(".part")  # a crash may leave that one torn, and never the one that is read
        whole.write_text(json.dumps({"pid": pid, "ports": ports}))
        whole.replace(self._state)


def spawn(command: Sequence[str], log: Path) -> int:
    """Start a process that is nobody's child, and return its pid.

    It outlives us, and no zombie of it stays with us."""
    script = 'log=$1; shift; "$@" </dev/null >>"$log" 2>&1 & echo $!'
    started = subprocess.run(
        ["/bin/sh", "-c", script, "sh", str(log), *command],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        start_new_session=True,
    )
    return int(started.stdout)


def command_line(pid: int) -> str:
    """Return the command line of a process, or "" when there is none or only a zombie."""
    shown = _shown(pid)
    return "" if shown.startswith("Z") else shown


def is_zombie(pid: int) -> bool:
    """Return whether the process has ended without its parent having noticed: signals still find it."""
    return _shown(pid).startswith("Z")


def _shown(pid: int) -> str:
    command = ["ps", "-ww", "-o", "stat=,command=", "-p", str(pid)]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout


def choose_port(kept: int | None) -> int:
    """Return the kept port if it is free, else a free one below the range from which the OS hands out ports by itself.

    A server needs seconds to start, and some are killed and started again: nobody else must get its port meanwhile."""
    others = (_FIRST_PORT + secrets.randbelow(_PORTS) for _ in range(_TRIES))
    for port in (*(() if kept is None else (kept,)), *others):
        if is_free(port):
            return port
    raise ServiceError("there is no free port on 127.0.0.1")


def is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


def answers(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1.0)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def tail(log: Path, lines: int = 20) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-lines:]) if log.exists() else "(nothing)"
