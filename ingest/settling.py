"""Notification of those who wait for an append, from a separate thread.

Threads are notified at once, each event loop with one wake-up for all that is due."""

import asyncio
import threading
from concurrent.futures import Future
from contextlib import suppress
from typing import Generic, TypeVar

R = TypeVar("R")
Waiter = asyncio.Future[R] | Future[R]


class Settler(Generic[R]):
    """Notifies waiters; thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._due: dict[asyncio.AbstractEventLoop, list[tuple[Waiter[R], R | Exception]]] = {}

    def settle(self, waiter: Waiter[R], result: R | Exception) -> None:
        """Notify the waiters; those that were cancelled are skipped."""
        if isinstance(waiter, Future):
            _set(waiter, result)
            return
        loop = waiter.get_loop()
        with self._lock:
            waiting = self._due.setdefault(loop, [])
            waiting.append((waiter, result))
            if len(waiting) > 1:
                return  # the loop is on its way
        with suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(self._settle_due, loop)

    def _settle_due(self, loop: asyncio.AbstractEventLoop) -> None:
        with self._lock:
            due = self._due.pop(loop)
        for waiter, result in due:
            _set(waiter, result)


def _set(waiter: Waiter[R], result: R | Exception) -> None:
    if waiter.done():
        return
    if isinstance(result, Exception):
        waiter.set_exception(result)
    else:
        waiter.set_result(result)
