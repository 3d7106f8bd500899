"""What lies outside the sandbox in a test of escapes, and how one sees that it was touched."""

import json
import os
import re
import secrets
import select
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attempts import PRELUDE
from sandboxed import PATIENCE_S

from environments.sandboxes.sandbox import CommandResult, Sandbox

_PYTHON = ["/.sandbox/so/loader", "--library-path", "/.sandbox/so", "/.sandbox/python", "-S", "-B", "-c"]

LIBRARY = {"/opt/library": Path(os.__file__).parent}
"""The folder that attempts import from: the Python of a sandbox knows little more than its supervisor needs."""


@dataclass
class World:
    """Files, processes and sockets that nothing inside may reach; `token` is known to them alone."""

    token: str
    folder: Path
    victim: subprocess.Popen[bytes]
    listening: list[socket.socket]
    told: dict[str, Any]

    @property
    def workspace(self) -> Path:
        return self.folder / "workspace"

    def touched(self) -> list[str]:
        """Return what is not as it was."""
        found = []
        if (self.folder / "canary").read_text() != "untouched":
            found.append("a file was changed")
        if {path.name for path in self.workspace.iterdir()} != {"file"}:
            found.append("the workspace's original was changed")
        if self.victim.poll() is not None:
            found.append("a process was killed")
        if select.select(self.listening, [], [], 0)[0]:
            found.append("a socket was reached")
        if socket.gethostname() != self.told["name"] or abs(time.time() - time.monotonic() - self.told["clock"]) > 3600:
            found.append("the machine's name or clock was changed")
        return found


@contextmanager
def world(folder: Path) -> Iterator[World]:
    """Make a world in `folder`."""
    token = secrets.token_hex(16)
    (folder / "workspace").mkdir(exist_ok=True)
    (folder / "workspace" / "file").write_text("of the machine")
    (folder / "secret").write_text(token)
    (folder / "canary").write_text("untouched")
    for path in (folder / "secret", folder / "canary", folder):
        path.chmod(0o777)  # whoever reaches it may read and write it
    with ExitStack() as stack:
        listening = [stack.enter_context(each) for each in _sockets(folder, token)]
        program = [sys.executable, "-c", "import time; time.sleep(600)", token]
        victim = subprocess.Popen(program, start_new_session=True, env={"SECRET": token})
        stack.callback(victim.wait)
        stack.callback(victim.kill)
        yield World(token, folder, victim, listening, _told(folder, token, victim, listening))


def _sockets(folder: Path, token: str) -> list[socket.socket]:
    tcp = socket.create_server(("", 0), family=socket.AF_INET6, dualstack_ipv6=True)
    udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    udp.bind(("127.0.0.1", tcp.getsockname()[1]))
    abstract, named = socket.socket(socket.AF_UNIX), socket.socket(socket.AF_UNIX)
    abstract.bind(f"\0{token[:8]}")
    named.bind(str(folder / "s"))
    (folder / "s").chmod(0o777)
    for each in (abstract, named):
        each.listen()
    return [tcp, udp, abstract, named]


def _told(folder: Path, token: str, victim: subprocess.Popen[bytes], listening: list[socket.socket]) -> dict[str, Any]:
    addresses = subprocess.run(["hostname", "-I"], capture_output=True, text=True, check=False).stdout.split()
    own = {"null", "zero", "full", "random", "urandom", "tty", "ptmx", "pts", "shm", "fd", "stdin", "stdout", "stderr"}
    devices = [str(path) for path in Path("/dev").iterdir() if path.name not in own and not path.is_dir()]
    return {
        "secret": str(folder / "secret"),
        "home": str(folder),
        "canary": str(folder / "canary"),
        "workspace": str(folder / "workspace"),
        "socket": str(folder / "s"),
        "abstract": token[:8],
        "port": listening[0].getsockname()[1],
        "addresses": addresses,
        "victim": victim.pid,
        "devices": devices,
        "nobody": 65534,
        "name": socket.gethostname(),
        "clock": time.time() - time.monotonic(),
        "owner": os.getpid(),
    }


async def attempt(sandbox: Sandbox, code: str, outside: World, *, timeout_seconds: float = PATIENCE_S) -> CommandResult:
    """Run a program inside, by the Python that every sandbox has."""
    (library,) = LIBRARY
    path = f"{library}:{library}/lib-dynload"
    given = {"PYTHONHOME": "/.sandbox", "PYTHONPATH": path, "WORLD": json.dumps(outside.told)}
    return await sandbox.run([*_PYTHON, PRELUDE + code], timeout_seconds=timeout_seconds, environment=given)


def escapes(result: CommandResult, outside: World) -> list[str]:
    """Return what an attempt has reached; empty when it reached nothing."""
    said = result.stdout + result.stderr
    found = outside.touched()
    if outside.token.encode() in said:
        found.append("a secret was read")
    if re.search(rb"^ESCAPED", said, re.MULTILINE):
        found.append(said.decode(errors="replace"))
    return found
