"""Runs one command, and watches over every process that it starts, also those that run on after it.

This process is the parent of all its orphans, so that none gets out of its sight. It reports once, when the command
ends or the owner asks for its end, and stays until the last of its processes has ended."""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # signal without its enumerations
import _socket
import marshal
import os
import select
import time

from environments.sandboxes.inside import files, process, trees

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any


def serve(descriptors: Sequence[int], limits: Sequence[int]) -> None:
    """Run what is asked for by five descriptors: request, stdin, stdout, stderr, status."""
    request, *streams, told = descriptors
    status = _socket.socket(fileno=told)
    with open(request, "rb") as file:
        wanted = marshal.load(file)
    started_at = time.time()
    code = _run(wanted, streams, limits, status)
    try:  # noqa: SIM105 - contextlib is not imported inside
        status.send(f"{code} {started_at!r} {time.time()!r}".encode())
    except OSError:  # the owner no longer waits
        pass
    status.close()
    _reap_all()
    os._exit(0)


def _run(wanted: Mapping[str, Any], streams: Sequence[int], limits: Sequence[int], status: _socket.socket) -> int:
    process.adopt_orphans()
    pid = os.fork()
    if pid == 0:
        _become(wanted, streams, limits)
    for descriptor in streams:
        os.close(descriptor)
    code, ended_by_owner = _outcome(pid, status)
    if ended_by_owner:
        _reap_all()
    return code


def _outcome(pid: int, status: _socket.socket) -> tuple[int, bool]:
    """Wait until the command ends, or end it with all that it started when the owner's end says so or is closed.

    Return its exit code, and whether the owner ended it."""
    watched = os.pidfd_open(pid)
    poll = select.poll()
    poll.register(watched, select.POLLIN)
    poll.register(status, select.POLLIN)
    ready = [descriptor for descriptor, _ in poll.poll()]
    os.close(watched)
    ended_by_owner = watched not in ready
    if ended_by_owner:
        trees.kill_below(os.getpid())
    _, ended = os.waitpid(pid, 0)
    code = os.waitstatus_to_exitcode(ended)
    return (code if code >= 0 else 128 - code), ended_by_owner


def _reap_all() -> None:
    while True:
        try:
            os.wait()
        except ChildProcessError:
            return


def _become(wanted: Mapping[str, Any], streams: Sequence[int], limits: Sequence[int]) -> None:
    """Become the command, within the sandbox's limits. Never returns."""
    code = 126
    try:
        for limit in limits:
            os.write(limit, b"0")
        os.setsid()
        for number, descriptor in enumerate(streams):
            os.dup2(descriptor, number)
        _signal.signal(_signal.SIGPIPE, _signal.SIG_DFL)  # which Python ignores, and would hand on
        os.umask(0o022)
        code = _perform(wanted)
    finally:
        os._exit(code)


def _perform(wanted: Mapping[str, Any]) -> int:
    match wanted["kind"]:
        case "run":
            return _execute(wanted["command"], wanted["workdir"], wanted["environment"])
        case "read":
            return _told(lambda: files.read(_placed(wanted), 1, wanted["most_bytes"]))
        case "write":
            return _told(lambda: files.write(_placed(wanted), 0, executable=wanted["executable"]))
        case "remove":
            return _told(lambda: files.remove(wanted["workdir"], wanted["paths"], wanted["links"]))
        case kind:
            assert kind == "unpack"
            return _told(lambda: files.unpack(0, _placed(wanted)))


def _placed(wanted: Mapping[str, Any]) -> str:
    path: str = wanted["path"]
    return os.path.join(wanted["workdir"], path)


def _execute(command: Sequence[str], workdir: str, environment: Mapping[str, str]) -> int:
    """Execute a program, and say as a shell does why that is not possible."""
    failed: OSError = FileNotFoundError(0, "not found", command[0])
    try:
        os.chdir(workdir)
    except OSError as error:
        os.write(2, f"{workdir}: {error.strerror}\n".encode())
        return 126
    for place in _places(command[0], environment):
        try:
            os.execve(place, list(command), dict(environment))
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            failed = error
            break
    os.write(2, f"{command[0]}: {failed.strerror}\n".encode())
    return 127 if isinstance(failed, FileNotFoundError) else 126


def _places(program: str, environment: Mapping[str, str]) -> list[str]:
    """Return where a program may lie; `os.execvpe` would import modules for it."""
    if "/" in program:
        return [program]
    return [f"{folder}/{program}" for folder in environment.get("PATH", os.defpath).split(":")]


def _told(act: Callable[[], None]) -> int:
    """Act, and write an error's number and words to stderr for the owner."""
    try:
        act()
    except OSError as error:
        os.write(2, f"{error.errno} {error.strerror}".encode())
        return 1
    return 0
