"""Hands out sandboxes of a bounded number to many askers, some of them prepared ahead.

Each asker waits in a line of its own, and the lines take turns: who asks for a hundred does not hold up who asks for
one. A sandbox is handed out once, and closed after."""

import asyncio
import contextlib
from collections import OrderedDict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

from environments.errors import InfrastructureFailure
from environments.sandboxes.expected import Expected
from environments.sandboxes.sandbox import CommandResult, Sandbox, Sandboxes, SandboxSpec

_TRIES = 3
_PAUSE_SECONDS = 0.1  # before the second try; twice as long before the third


class Pool:
    """At most `most_open` sandboxes at once, beside those that `prepare` and `expect` asked for."""

    def __init__(self, sandboxes: Sandboxes, *, most_open: int, most_expected: int = 2) -> None:
        self._sandboxes = sandboxes
        self._expected = Expected(self._opened, most_expected)
        self._free = most_open
        self._lines: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()
        self._prepared: dict[str, _Prepared] = {}
        self._open: set[PooledSandbox] = set()
        self._closed = False

    async def open(self, spec: SandboxSpec, *, asker: str = "", within_seconds: float | None = None) -> "PooledSandbox":
        """Wait for a place and return a sandbox in it.

        Raises InfrastructureFailure where there is none `within_seconds`, or where it cannot be made in three tries."""
        try:
            async with asyncio.timeout(within_seconds):
                await self._place(asker)
                with contextlib.ExitStack() as undo:
                    undo.callback(self._give_back)
                    sandbox = PooledSandbox(await self._make(spec), self)
                    undo.pop_all()
        except TimeoutError:
            raise InfrastructureFailure("sandbox", f"there was none within {within_seconds} s") from None
        self._open.add(sandbox)
        return sandbox

    async def prepare(self, spec: SandboxSpec, count: int) -> None:
        """Keep so many ready for this spec from now on, and wait until they are."""
        prepared = self._prepared.setdefault(_key(spec), _Prepared(spec))
        prepared.wanted = count
        async with prepared.changing:
            while len(prepared.ready) > prepared.wanted:
                await prepared.ready.popleft().close()
            await self._make_ready(prepared)

    def expect(self, spec: SandboxSpec) -> None:
        """Begin to make one for whoever asks for such a one next, unless one is there.

        It is kept until then, or until too many others are expected after it. Where it cannot be made, who asks for it
        meets the failure himself."""
        prepared = self._prepared.get(_key(spec))
        if not self._closed and (prepared is None or not prepared.ready):
            self._expected.add(_key(spec), spec)

    async def close(self) -> None:
        """Close all that were handed out, prepared or expected, and refuse those who wait."""
        self._closed = True
        for line in self._lines.values():
            for waiting in line:
                waiting.cancel()
        fillings = [prepared.filling for prepared in self._prepared.values() if prepared.filling is not None]
        for filling in fillings:
            filling.cancel()
        await asyncio.gather(*fillings, return_exceptions=True)
        await self._expected.close()
        ready = [sandbox for prepared in self._prepared.values() for sandbox in prepared.ready]
        await asyncio.gather(*(sandbox.close() for sandbox in [*ready, *self._open]))
        await self._sandboxes.close()

    async def _place(self, asker: str) -> None:
        self._refuse_if_closed()
        if self._free > 0:
            self._free -= 1
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._lines.setdefault(asker, deque()).append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():  # it was this one's turn in the very moment
                self._give_back()
            elif self._closed:
                raise InfrastructureFailure("sandbox", "the pool was closed") from None
            raise

    def _give_back(self) -> None:
        """Give a place to the next line's first, and let that line go last."""
        for asker in list(self._lines):
            line = self._lines[asker]
            while line and line[0].done():
                line.popleft()
            if not line:
                del self._lines[asker]
                continue
            line.popleft().set_result(None)
            self._lines.move_to_end(asker)
            return
        self._free += 1

    async def _make(self, spec: SandboxSpec) -> Sandbox:
        prepared = self._prepared.get(_key(spec))
        if prepared is None or not prepared.ready:
            return await self._expected.take(_key(spec)) or await self._tried(spec)
        sandbox = prepared.ready.popleft()
        if prepared.filling is None or prepared.filling.done():
            prepared.filling = asyncio.create_task(self._fill(prepared))
        return sandbox

    async def _fill(self, prepared: "_Prepared") -> None:
        # What fails, the next asker meets himself, once none is ready.
        with contextlib.suppress(InfrastructureFailure):
            async with prepared.changing:
                await self._make_ready(prepared)

    async def _make_ready(self, prepared: "_Prepared") -> None:
        """Make as many as are wanted, of which there may be fewer by the time that one is made."""
        while len(prepared.ready) < prepared.wanted:
            sandbox = await self._tried(prepared.spec)
            if len(prepared.ready) < prepared.wanted:
                prepared.ready.append(sandbox)
            else:
                await sandbox.close()

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


@dataclass
class _Prepared:
    spec: SandboxSpec
    wanted: int = 0
    ready: deque[Sandbox] = field(default_factory=deque)
    filling: asyncio.Task[None] | None = None
    changing: asyncio.Lock = field(default_factory=asyncio.Lock)  # two who fill at once would make too many


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
