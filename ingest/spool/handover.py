"""The gate before an event log and its spool: closed while the last records of the spool go to the log.

Without it, new appends would queue up behind the old ones as fast as these are drained, and a spool under load would
never be empty."""

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager

from ingest.settling import Settler, Waiter


class AppendBarrier:
    """A gate that appends pass; thread-safe.

    An append may pass just before the gate closes, so appends in progress must be waited for, too."""

    def __init__(self) -> None:
        self._settler = Settler[None]()
        self._lock = threading.Lock()
        self._waiters: list[Waiter[None]] | None = None  # None: it is open

    @contextmanager
    def shut(self) -> Iterator[None]:
        with self._lock:
            self._waiters = []
        try:
            yield
        finally:
            with self._lock:
                waiters, self._waiters = self._waiters, None
            for waiter in waiters or ():
                self._settler.settle(waiter, None)

    async def passed(self) -> None:
        while self._waiters is not None:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            if self._joined(waiter):
                await waiter

    def passed_blocking(self) -> None:
        """Pass the gate, from a thread."""
        while self._waiters is not None:
            waiter: Future[None] = Future()
            if self._joined(waiter):
                waiter.result()

    def _joined(self, waiter: Waiter[None]) -> bool:
        with self._lock:
            if self._waiters is None:
                return False
            self._waiters.append(waiter)
            return True
