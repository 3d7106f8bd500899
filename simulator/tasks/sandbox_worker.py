"""The sandbox's fork server: run as `python -I -S sandbox_worker.py`.

Reads one JSON request a line, {"code", "tests": [[expression, expected repr], ...]}, and answers one line,
{"passed", "total", "error"}. Every request runs in a child of its own with bounds on processor time, wall time, memory,
file size, open files and processes; the server first leaves the network's namespace where the kernel lets it, and the
children refuse to make sockets in any case. Bounds for code of a small model, not a boundary against an attacker.
"""

import ctypes
import json
import os
import resource
import signal
import socket
import sys

CPU_S = 1
WALL_S = 1.0
MEMORY_BYTES = 512 << 20
OPEN_FILES = 16
_CLONE_NEWNET = 0x40000000
_REFUSED = ("socket.", "os.fork", "os.exec", "os.posix_spawn", "os.system", "subprocess.", "ctypes.")


def _leave_network() -> None:
    unshare = getattr(ctypes.CDLL(None, use_errno=True), "unshare", None)
    if unshare is not None:
        unshare(_CLONE_NEWNET)  # refused without privilege; the audit hook below still holds


def _refuse(event: str, _arguments: object) -> None:
    if event.startswith(_REFUSED):
        raise PermissionError(f"{event} is not allowed here")


def _limit() -> None:
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_S, CPU_S))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    resource.setrlimit(resource.RLIMIT_NOFILE, (OPEN_FILES, OPEN_FILES))
    resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, WALL_S)
    sys.addaudithook(_refuse)


def _run(request: dict, answer: int) -> None:
    """Run the tests in the child.

    What the code under test raises is its result: the interpreter's last hook writes it."""
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(null, descriptor)
    result = {"passed": 0, "total": len(request["tests"]), "error": None}

    def finish(error: str | None) -> None:
        os.write(answer, json.dumps(result | {"error": error}).encode())
        os._exit(0)

    sys.excepthook = lambda kind, _value, _trace: finish(kind.__name__)
    _limit()
    names: dict = {"__name__": "answer"}
    exec(compile("import math\n" + request["code"], "answer.py", "exec"), names)
    for expression, expected in request["tests"]:
        result["passed"] += repr(eval(expression, names)) == expected
    finish(None)


def _serve_one(line: str) -> str:
    request = json.loads(line)
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        _run(request, writer)
    os.close(writer)
    parts = []
    while part := os.read(reader, 65536):
        parts.append(part)
    os.close(reader)
    os.waitpid(child, 0)
    killed = json.dumps({"passed": 0, "total": len(request["tests"]), "error": "killed"})
    return b"".join(parts).decode() or killed


def main() -> None:
    _leave_network()
    socket.setdefaulttimeout(0)
    for line in sys.stdin:
        print(_serve_one(line), flush=True)


if __name__ == "__main__":
    main()
