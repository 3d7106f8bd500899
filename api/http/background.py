"""Work apart from a request: what must end although the request was given up, and what clients make long."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


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
    """A thread for what clients make long, though their bodies are small: exports, and texts that are compared.

    There is one at a time. The threads on which everybody reads the store are few, and each that computes takes the
    interpreter from the event loop: many at once would stop others."""

    def __init__(self) -> None:
        self._one = asyncio.Lock()

    async def run(self, work: Callable[[], T]) -> T:
        """Return what the work makes, after the work that came before. Raises as it does."""
        async with self._one:
            return await to_its_end(asyncio.to_thread(work))


async def to_its_end(work: Coroutine[Any, Any, T]) -> T:
    """Return what the work makes. Who is cancelled meanwhile waits, and the next in line with him.

    A thread cannot be ended, and the process would have to start again: else hang-ups would cost all others that."""
    begun = asyncio.create_task(work)
    try:
        return await asyncio.shield(begun)
    except asyncio.CancelledError:
        await asyncio.gather(begun, return_exceptions=True)
        raise
