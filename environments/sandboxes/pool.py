"""Hands out sandboxes of a bounded number, some of them made ahead. Each is handed out once, and closed after.

Who came first is served first. What comes first, and how long a sandbox is waited for, is the caller's business."""

import asyncio
import contextlib
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from environments.errors import InfrastructureFailure
from environments.sandboxes.expected import Expected
from environments.sandboxes.sandbox import CommandResult, Sandbox, Sandboxes, SandboxSpec

_TRIES = 3
_PAUSE_SECONDS = 0.1  # before the second try; twice as long before the third


class Pool:
    """At most `most_open` sandboxes at once, beside those that `expect` asked for."""

    def __init__(self, sandboxes: Sandboxes, *, most_open: int, most_expected: int = 2) -> None:
        self._sandboxes = sandboxes
        self._expected = Expected(self._opened, most_expected)
        self._free = most_open
        self._line: deque[asyncio.Future[None]] = deque()
        self._open: set[PooledSandbox] = set()
        self._closed = False

    async def open(self, spec: SandboxSpec) -> "PooledSandbox":
        """Wait for a place and return a sandbox in it.

        Raises InfrastructureFailure where it cannot be made in three tries."""
        await self._place()
        with contextlib.ExitStack() as undo:
            undo.callback(self._give_back)
            made = await self._expected.take(_key(spec)) or await self._tried(spec)
            sandbox = PooledSandbox(made, self)
            undo.pop_all()
        self._open.add(sandbox)
        return sandbox

    def expect(self, spec: SandboxSpec) -> None:
        """Begin to make one for whoever asks for such a one next, unless one is there.

        It is kept until then, or until too many others are expected after it. Where it cannot be made, who asks for it
        meets the failure himself."""
        if not self._closed:
            self._expected.add(_key(spec), spec)

    async def close(self) -> None:
        """Close all that were handed out or expected, and refuse those who wait."""
        self._closed = True
        for waiting in self._line:
            waiting.cancel()
        await self._expected.close()
        await asyncio.gather(*(sandbox.close() for sandbox in list(self._open)))
        await self._sandboxes.close()

    async def _place(self) -> None:
        self._refuse_if_closed()
        if self._free > 0:
            self._free -= 1
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._line.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():  # it was this one's turn in the very moment
                self._give_back()
            elif self._closed:
                raise InfrastructureFailure("sandbox", "the pool was closed") from None
            raise

    def _give_back(self) -> None:
        """Give a place to who has waited longest."""
        while self._line:
            turn = self._line.popleft()
            if not turn.done():
                turn.set_result(None)
                return
        self._free += 1

    async def _tried(self, spec: SandboxSpec) -> Sandbox:
        for tried in range(_TRIES - 1):
            try:
                return await self._opened(spec)
            except InfrastructureFailure:
                self._refuse_if_closed()
                await asyncio.sleep(_PAUSE_SECONDS * 2**tried)
        return await self._opened(spec)

    async def _opened(self, spec: SandboxSpec) -> Sandbox:
        """Open one, which nobody gets where the pool was closed meanwhile."""
        self._refuse_if_closed()
        sandbox = await self._sandboxes.open(spec)
        if self._closed:
            await sandbox.close()
        self._refuse_if_closed()
        return sandbox

    def _refuse_if_closed(self) -> None:
        if self._closed:
            raise InfrastructureFailure("sandbox", "the pool is closed")

    def forget(self, sandbox: "PooledSandbox") -> None:
        if sandbox in self._open:
            self._open.remove(sandbox)
            self._give_back()


class PooledSandbox:
    """A sandbox that gives its place back when it closes."""

    def __init__(self, sandbox: Sandbox, pool: Pool) -> None:
        self.inner = sandbox
        self._pool = pool

    async def run(
        self,
        command: Sequence[str],
        *,
        timeout_seconds: float,
        stdin: bytes = b"",
        workdir: str | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> CommandResult:
        return await self.inner.run(
            command, timeout_seconds=timeout_seconds, stdin=stdin, workdir=workdir, environment=environment
        )

    async def read(self, path: str) -> bytes:
        return await self.inner.read(path)

    async def write(self, path: str, content: bytes, *, executable: bool = False) -> None:
        await self.inner.write(path, content, executable=executable)

    async def copy_in(self, source: Path, target: str) -> None:
        await self.inner.copy_in(source, target)

    async def remove(self, paths: Sequence[str], links: Mapping[str, str]) -> None:
        await self.inner.remove(paths, links)

    async def end_commands(self) -> None:
        await self.inner.end_commands()

    async def close(self) -> None:
        try:
            await self.inner.close()
        finally:
            self._pool.forget(self)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


def _key(spec: SandboxSpec) -> str:
    """Return what is equal for equal specs; those hold mappings, which cannot be keys."""
    folders, environment = sorted(spec.folders.items()), sorted(spec.environment.items())
    return repr((spec.workspace, spec.workdir, spec.root, spec.layers, folders, environment, spec.network, spec.limits))
