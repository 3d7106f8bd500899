"""The sandbox's fork server: run as `python -I -S sandbox_worker.py`.

Reads one JSON request a line, {"code", "expressions"}, and answers one line, {"values", "error"}: the repr of each
expression's value in order, up to the first that raised, and the name of what was raised. What the values should be
never comes here, so code cannot look it up.

Every request runs in a child of its own with bounds on processor time, wall time, memory, file size, open files,
processes and the length of its answer, and the server kills it when its time is over. The server first leaves the
network's namespace where the kernel lets it; children refuse in any case to make sockets, to start or signal processes,
and to open files for writing, remove or rename them. These are bounds for what a model writes, not a boundary against
an attacker.
"""

import contextlib
import ctypes
import json
import os
import resource
import select
import signal
import socket
import sys
import time

CPU_S = 1
WALL_S = 1.0
GRACE_S = 0.5  # for a child that turned its own alarm off
MEMORY_BYTES = 512 << 20
OPEN_FILES = 16
VALUE_CHARACTERS = 2000  # of a value's repr; longer ones are no value
ANSWER_BYTES = 32 << 10  # within what the reader of a line takes
_CLONE_NEWNET = 0x40000000
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_REFUSED = (
    "socket.",
    "os.",
    "subprocess.",
    "ctypes.",
    "shutil.",
    "tempfile.",
    "pty.",
    "fcntl.",
    "resource.",
    "signal.",
)
_NEEDED = ("os.listdir", "os.scandir", "os.putenv", "os.unsetenv")  # by imports, and harmless
_UNAUDITED = ("_posixsubprocess", "_ctypes", "_multiprocessing")  # modules that start processes unseen


def _leave_network() -> None:
    unshare = getattr(ctypes.CDLL(None, use_errno=True), "unshare", None)
    if unshare is not None:
        unshare(_CLONE_NEWNET)  # refused without privilege; the audit hook below still holds


def _refuse(event: str, arguments: tuple) -> None:
    if event == "open":
        refused = bool((arguments[2] or 0) & _WRITING)
    elif event == "import":
        refused = arguments[0] in _UNAUDITED
    else:
        refused = event.startswith(_REFUSED) and event not in _NEEDED
    if refused:
        raise PermissionError(f"{event} is not allowed here")


def _limit() -> None:
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_S, CPU_S))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_NOFILE, (OPEN_FILES, OPEN_FILES))
    resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, WALL_S)
    sys.addaudithook(_refuse)


def _run(request: dict, answer: int) -> None:
    """Evaluate the expressions in the child.

    What the code under test raises is its result: the interpreter's last hook writes it."""
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(null, descriptor)
    values: list = []

    def finish(error: str | None) -> None:
        os.write(answer, json.dumps({"values": values, "error": error}).encode())
        os._exit(0)

    sys.excepthook = lambda kind, _value, _trace: finish(kind.__name__)
    _limit()
    names: dict = {"__name__": "answer"}
    exec(compile("import math\n" + request["code"], "answer.py", "exec"), names)
    for expression in request["expressions"]:
        value = repr(eval(expression, names))
        values.append(value if len(value) <= VALUE_CHARACTERS else None)
    finish(None)


def _serve_one(line: str) -> str:
    request = json.loads(line)
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        _run(request, writer)
    os.close(writer)
    answer = _read(reader)
    os.close(reader)
    os.kill(child, signal.SIGKILL)  # whatever it does still
    os.waitpid(child, 0)
    return _checked(answer)


def _read(reader: int) -> bytes:
    """Return what the child answers, within its time and up to a byte more than it may."""
    deadline = time.monotonic() + WALL_S + GRACE_S
    answer = b""
    while len(answer) <= ANSWER_BYTES:
        ready, _, _ = select.select([reader], [], [], max(0.0, deadline - time.monotonic()))
        part = os.read(reader, 4096) if ready else b""
        if not part:
            break
        answer += part
    return answer


def _checked(answer: bytes) -> str:
    """Return the answer's line; code that wrote one of its own, or none, was killed."""
    with contextlib.suppress(ValueError, TypeError, KeyError, AttributeError, RecursionError):
        told = json.loads(answer) if len(answer) <= ANSWER_BYTES else {}
        values, error = list(told["values"]), told["error"]
        if all(value is None or isinstance(value, str) for value in values) and (error is None or error.isidentifier()):
            return json.dumps({"values": values, "error": error})
    return json.dumps({"values": [], "error": "killed"})


def main() -> None:
    _leave_network()
    socket.setdefaulttimeout(0)
    for line in sys.stdin:
        print(_serve_one(line), flush=True)


if __name__ == "__main__":
    main()
