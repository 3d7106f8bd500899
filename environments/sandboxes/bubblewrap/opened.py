"""One open sandbox of bubblewrap, seen from its owner."""

import asyncio
import contextlib
import errno
import marshal
import os
import socket
import subprocess
import tarfile
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from environments.errors import InfrastructureFailure
from environments.sandboxes.bubblewrap.plan import environment as standing_environment
from environments.sandboxes.bubblewrap.streams import Output
from environments.sandboxes.bubblewrap.waiting import readable
from environments.sandboxes.limits.cgroups import ControlGroup
from environments.sandboxes.sandbox import CommandResult, SandboxSpec

_FILE_SECONDS = 60.0  # for reading or writing one file, or copying a folder
_ENDS_WITHIN_SECONDS = 10.0
_WATCHER_ENDS_WITHIN_SECONDS = 3.0
_MOST_READ_BYTES = 64 << 20


class BubblewrapSandbox:
    """A sandbox whose first process is `inside.supervisor`; that one, and all others with it, ends with `control`."""

    def __init__(
        self,
        spec: SandboxSpec,
        process: subprocess.Popen[bytes],
        control: socket.socket,
        group: ControlGroup | None,
        forget: Callable[["BubblewrapSandbox"], None],
    ) -> None:
        self.spec = spec
        self._process, self._control, self._group = process, control, group
        self._forget = forget
        self._environment = standing_environment(spec)
        self._closing: asyncio.Task[None] | None = None
        self._ending = asyncio.Lock()

    async def run(
        self,
        command: Sequence[str],
        *,
        timeout_seconds: float,
        stdin: bytes = b"",
        workdir: str | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> CommandResult:
        wanted = {
            "kind": "run",
            "command": list(command),
            "workdir": os.path.join(self.spec.workdir, workdir or ""),
            "environment": {**self._environment, **(environment or {})},
        }
        return await self._serve(wanted, timeout_seconds, stdin, self.spec.limits.output_bytes)

    async def read(self, path: str) -> bytes:
        wanted = {"kind": "read", "path": path, "workdir": self.spec.workdir, "most_bytes": _MOST_READ_BYTES}
        return _fine(path, await self._serve(wanted, _FILE_SECONDS, b"", _MOST_READ_BYTES)).stdout

    async def write(self, path: str, content: bytes, *, executable: bool = False) -> None:
        wanted = {"kind": "write", "path": path, "workdir": self.spec.workdir, "executable": executable}
        _fine(path, await self._serve(wanted, _FILE_SECONDS, content, 0))

    async def copy_in(self, source: Path, target: str) -> None:
        wanted = {"kind": "unpack", "path": target, "workdir": self.spec.workdir}
        with contextlib.ExitStack() as closing:
            try:
                with tempfile.TemporaryFile() as file:  # whose closing meets a full disk once more
                    packed = os.dup(file.fileno())
                    closing.callback(os.close, packed)
                    await asyncio.to_thread(_pack, source, file)
            except OSError as error:  # of this machine, and not of what lies in the sandbox
                raise InfrastructureFailure("disk", f"{source} cannot be packed: {error}") from error
            _fine(target, await self._serve(wanted, _FILE_SECONDS, packed, 0))

    async def remove(self, paths: Sequence[str], links: Mapping[str, str]) -> None:
        wanted = {"kind": "remove", "paths": list(paths), "links": dict(links), "workdir": self.spec.workdir}
        _fine("what is removed", await self._serve(wanted, _FILE_SECONDS, b"", 0))

    async def end_commands(self) -> None:
        async with self._ending:
            await self._send(b"end", [])
            try:
                await asyncio.wait_for(readable(self._control.fileno()), _ENDS_WITHIN_SECONDS)
            except TimeoutError:
                await self.close()
                raise InfrastructureFailure("sandbox", "its processes do not end, and it was closed") from None
            with contextlib.suppress(ConnectionResetError):  # it was gone before it read the word
                if self._control.recv(16) == b"ended":
                    return
            raise self._ended()

    async def close(self) -> None:
        if self._closing is None:
            self._closing = asyncio.create_task(self._end())
        await asyncio.shield(self._closing)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def _serve(
        self, wanted: dict[str, Any], timeout_seconds: float, stdin: bytes | int, most_bytes: int
    ) -> CommandResult:
        """Have one command served and wait for its end. A caller that is cancelled ends the command, too."""
        if self._closing is not None:
            raise InfrastructureFailure("sandbox", "it is closed")
        started_at = time.time()
        killed_before = self._group.killed_for_memory() if self._group else 0
        stdout, stderr = Output(most_bytes), Output(max(most_bytes, 4096))
        status, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with contextlib.closing(stdout), contextlib.closing(stderr), status:
            await self._ask(wanted, stdin, stdout, stderr, theirs)
            told, timed_out = await self._wait(status, timeout_seconds)
            out, err = stdout.content(), stderr.content()
        killed = (self._group.killed_for_memory() if self._group else 0) - killed_before
        code, began, ended = told.split() if told else (b"137", started_at, time.time())
        return CommandResult(
            int(code),
            out,
            err,
            float(began),
            float(ended),
            timed_out,
            out_of_memory=killed > 0,
            cut_bytes=stdout.cut_bytes + stderr.cut_bytes,
        )

    async def _ask(
        self, wanted: dict[str, Any], stdin: bytes | int, stdout: Output, stderr: Output, status: socket.socket
    ) -> None:
        request = _in_memory(marshal.dumps(wanted))
        source = _in_memory(stdin) if isinstance(stdin, bytes) else os.dup(stdin)
        try:
            await self._send(b"command", [request, source, stdout.to, stderr.to, status.fileno()])
        finally:
            status.close()
            stdout.given_away()
            stderr.given_away()
            os.close(request)
            os.close(source)

    async def _send(self, word: bytes, descriptors: list[int]) -> None:
        while True:
            try:
                socket.send_fds(self._control, [word], descriptors)
                return
            except BlockingIOError:
                await asyncio.sleep(0.001)
            except OSError as error:
                raise self._ended() from error

    async def _wait(self, status: socket.socket, timeout_seconds: float) -> tuple[bytes, bool]:
        """Return what was told of the command's end, and whether its time was over.

        Nothing is told where the process that watched over it was killed, which a command can do."""
        try:
            await asyncio.wait_for(readable(status.fileno()), timeout_seconds)
            timed_out = False
        except TimeoutError:
            timed_out = True
            with contextlib.suppress(OSError):  # it has ended in this very moment
                status.send(b"end")
            try:
                await asyncio.wait_for(readable(status.fileno()), _WATCHER_ENDS_WITHIN_SECONDS)
            except TimeoutError:  # the command has stopped the process that watches over it
                await self.end_commands()
                await readable(status.fileno())
        with contextlib.suppress(ConnectionResetError):
            if told := status.recv(4096):
                return told, timed_out
        if self._process.poll() is not None or await self._is_gone():
            raise self._ended()
        return b"", timed_out

    async def _is_gone(self) -> bool:
        """Tell whether the first process has ended: its end of the control socket is closed, or will be in a moment."""
        await asyncio.sleep(0.01)
        try:
            return not self._control.recv(16, socket.MSG_PEEK)
        except BlockingIOError:
            return False
        except OSError:
            return True

    def _ended(self) -> InfrastructureFailure:
        return InfrastructureFailure("sandbox", "its first process has ended, and all others with it")

    async def _end(self) -> None:
        """End every process and wait until the kernel has forgotten them: bubblewrap ends last."""
        self._control.close()
        gone = os.pidfd_open(self._process.pid) if self._process.poll() is None else None
        if gone is not None:
            try:
                await asyncio.wait_for(readable(gone), _ENDS_WITHIN_SECONDS)
            except TimeoutError:
                self._process.kill()
            finally:
                os.close(gone)
        if self._process.poll() is None:  # it was killed, and the kernel takes its time
            await asyncio.to_thread(self._process.wait)
        self._forget(self)
        if self._group is not None:
            await asyncio.to_thread(self._group.remove)


def _fine(path: str, result: CommandResult) -> CommandResult:
    """Raise what a file's operation met as the error that a program inside would see."""
    if result.exit_code == 0:
        return result
    number, _, words = result.stderr.decode(errors="replace").partition(" ")
    if result.out_of_memory:
        raise OSError(errno.ENOSPC, "the sandbox's memory is full", path)
    if result.timed_out or not number.isdigit():
        raise InfrastructureFailure("sandbox", f"{path} was not reached: {result.stderr.decode(errors='replace')}")
    raise OSError(int(number), words, path)


def _in_memory(content: bytes) -> int:
    file = os.memfd_create("given")
    with open(file, "wb", closefd=False) as out:
        out.write(content)
    os.lseek(file, 0, os.SEEK_SET)
    return file


def _pack(source: Path, to: Any) -> None:
    with tarfile.open(fileobj=to, mode="w") as archive:
        archive.add(source, arcname=".", filter=lambda member: _with_content(source, member))
    to.seek(0)


def _with_content(source: Path, member: tarfile.TarInfo) -> tarfile.TarInfo:
    """Pack a further name of a file (a hard link) as a file of its own; a symbolic link stays what it is.

    The other side unpacks a stream, and cannot go back to the name that was packed with the content."""
    if member.islnk():
        member.type, member.linkname = tarfile.REGTYPE, ""
        member.size = source.joinpath(member.name).lstat().st_size
    return member
