"""Waiters for changes on channels, in this process."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Waiter:
    """The port's `Changes`. Used on the event loop that made it; woken from any thread."""

    def __init__(self, channel: str) -> None:
        self.channel = channel
        self._loop = asyncio.get_running_loop()
        self._announced = asyncio.Event()

    def wake(self) -> None:
        self._loop.call_soon_threadsafe(self._announced.set)

    async def wait(self, timeout_s: float) -> bool:
        try:
            async with asyncio.timeout(timeout_s):
                await self._announced.wait()
        except TimeoutError:
            return False
        self._announced.clear()
        return True


class Channels:
    """The waiters of all channels. Thread-safe."""

    def __init__(self) -> None:
        self._waiters: set[Waiter] = set()
        self._lock = threading.Lock()
        self.on_announce: Callable[[str], None] | None = None  # called from whatever thread announces

    def announce(self, channel: str) -> None:
        self._wake(channel)
        if self.on_announce is not None:
            self.on_announce(channel)

    def announce_all(self) -> None:
        """Wake all waiters, where announcements may have been missed."""
        self._wake(None)

    def _wake(self, channel: str | None) -> None:
        with self._lock:  # a waiter leaves before its loop ends, so the loops of those that are here run
            for waiter in self._waiters:
                if channel in (None, waiter.channel):
                    waiter.wake()

    @contextmanager
    def changes(self, channel: str) -> Iterator[Waiter]:
        waiter = Waiter(channel)
        with self._lock:
            self._waiters.add(waiter)
        try:
            yield waiter
        finally:
            with self._lock:
                self._waiters.discard(waiter)
