"""Work outside a request's own task: work that must end even if the client hangs up, and work that may take long."""

import asyncio
import os
from collections.abc import Callable, Coroutine, Hashable
from contextvars import ContextVar
from typing import Any, Final, TypeVar
from weakref import WeakValueDictionary

T = TypeVar("T")
_THREADS: Final = min(32, (os.cpu_count() or 1) + 4)
"""Those of asyncio's own, which all requests share."""
_OF_A_CALLER: Final = _THREADS // 2
_caller: ContextVar[Hashable | None] = ContextVar("caller", default=None)
_rooms: WeakValueDictionary[tuple[asyncio.AbstractEventLoop, Hashable], asyncio.Semaphore] = WeakValueDictionary()


def called_by(caller: Hashable | None) -> None:
    """Set the caller for whom this task, and the tasks that it starts, use threads; None: nobody in particular."""
    _caller.set(caller)


async def on_a_thread(work: Callable[..., T], *given: Any) -> T:
    """Read or change the store on a thread, for a request, and return what the work returns. Raises as it does.

    The threads are everybody's, and how long one is taken depends on what its user said and on the store: so one
    caller has half of them at most, and the rest of her requests wait. A thread is taken until its work is over, also
    by who hung up."""
    caller = _caller.get()
    if caller is None:
        return await asyncio.to_thread(work, *given)
    key = asyncio.get_running_loop(), caller
    room = _rooms.get(key)
    if room is None:
        room = _rooms[key] = asyncio.Semaphore(_OF_A_CALLER)
    async with room:
        return await to_its_end(asyncio.to_thread(work, *given))


class Background:
    """The tasks that still run, held until they are done: the event loop itself keeps only weak references."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    def spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def insist(self, work: Coroutine[Any, Any, T]) -> T:
        """Wait for the work; when this wait is cancelled, the work goes on."""
        return await asyncio.shield(self.spawn(work))

    async def drain(self) -> None:
        """Wait until all tasks have ended."""
        while self._tasks:
            await asyncio.wait(self._tasks)


class Aside:
    """A thread for work that may take long although the request is small: exports, and comparisons of texts.

    There is one at a time. The threads on which everybody reads the store are few, and each that computes takes the
    interpreter from the event loop: many at once would stop others. Each caller has one piece in the common line, and
    its others wait in its own: whoever sends many keeps nobody else waiting for longer than one of each takes."""

    def __init__(self) -> None:
        self._one = asyncio.Lock()
        self._lines: dict[Hashable, _Line] = {}

    async def run(self, caller: Hashable, work: Callable[[], T]) -> T:
        """Return what the work makes, after the caller's work that came before. Raises as it does."""
        line = self._lines.setdefault(caller, _Line())
        line.length += 1
        try:
            async with line.head, self._one:
                return await to_its_end(asyncio.to_thread(work))
        finally:
            line.length -= 1
            if not line.length:
                del self._lines[caller]


class _Line:
    """The work of one caller; the piece that holds `head` waits in the common line, or runs."""

    def __init__(self) -> None:
        self.head = asyncio.Lock()
        self.length = 0


class Shared:
    """A thread for results that are the same for all who ask: all who wait share the next one.

    So as many may ask as there are connections, and nobody waits for more than what is being made, and one of each
    kind. There is one at a time."""

    def __init__(self) -> None:
        self._one = asyncio.Lock()
        self._next: dict[Hashable, asyncio.Task[Any]] = {}
        self._background = Background()

    async def run(self, kind: Hashable, work: Callable[[], T]) -> T:
        """Return what the work makes, begun after this was asked for. Raises as it does."""
        following: asyncio.Task[T] | None = self._next.get(kind)
        if following is None:
            following = self._next[kind] = self._background.spawn(self._made(kind, work))
        return await asyncio.shield(following)

    async def _made(self, kind: Hashable, work: Callable[[], T]) -> T:
        async with self._one:
            del self._next[kind]  # who asks from now on is told of what is then
            return await asyncio.to_thread(work)


async def to_its_end(work: Coroutine[Any, Any, T]) -> T:
    """Return what the work makes. Who is cancelled meanwhile waits, and the next in line with him.

    A thread cannot be ended, and the process would have to start again: else hang-ups would cost all others that."""
    begun = asyncio.create_task(work)
    try:
        return await asyncio.shield(begun)
    except asyncio.CancelledError:
        await asyncio.gather(begun, return_exceptions=True)
        raise
