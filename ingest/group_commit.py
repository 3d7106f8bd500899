"""Group commit: what arrives while one commit runs shares the next.

The durable write (an fsync) costs the same for one item and for a hundred, so one thread takes everything that waits,
applies it at once, and tells each event loop about all of its items in a single wake-up.
"""

import asyncio
import threading
from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Generic, TypeVar

from core.errors import LogUnavailable

T = TypeVar("T")
R = TypeVar("R")
Waiter = asyncio.Future[R] | Future[R]


class GroupCommit(Generic[T, R]):
    """`apply` gets the items of one batch in order of arrival and returns one result, or one error, for each.
    When it raises, every item of the batch fails with that error. It runs on this object's own thread."""

    def __init__(self, name: str, apply: Callable[[Sequence[T]], Sequence[R | Exception]], max_items: int) -> None:
        self._apply = apply
        self._max_items = max_items
        self._queue: SimpleQueue[tuple[T, Waiter[R]] | None] = SimpleQueue()
        self._lock = threading.Lock()  # so that nothing queues up behind the end
        self._closed = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def submit(self, item: T) -> asyncio.Future[R]:
        """For the running event loop. Giving up the wait does not take the item back."""
        waiter: asyncio.Future[R] = asyncio.get_running_loop().create_future()
        self._put(item, waiter)
        return waiter

    def submit_blocking(self, item: T) -> R:
        """For threads."""
        waiter: Future[R] = Future()
        self._put(item, waiter)
        return waiter.result()

    def close(self) -> None:
        """Finish what was submitted; refuse what comes later."""
        with self._lock:
            if not self._closed:
                self._closed = True
                self._queue.put(None)
        self._thread.join()

    def _put(self, item: T, waiter: Waiter[R]) -> None:
        with self._lock:
            if self._closed:
                raise LogUnavailable(f"{self._thread.name} is closed")
            self._queue.put((item, waiter))

    def _run(self) -> None:
        open_ = True
        while open_:
            entry = self._queue.get()
            batch: list[tuple[T, Waiter[R]]] = []
            while entry is not None:
                batch.append(entry)
                if len(batch) == self._max_items:
                    break
                try:
                    entry = self._queue.get_nowait()
                except Empty:
                    break
            open_ = entry is not None
            if batch:
                _deliver([waiter for _, waiter in batch], self._results([item for item, _ in batch]))

    def _results(self, items: Sequence[T]) -> Sequence[R | Exception]:
        try:
            results = self._apply(items)
        except Exception as error:  # noqa: BLE001 - whoever waits for an item raises it
            return [error] * len(items)
        assert len(results) == len(items)
        return results


def _deliver(waiters: Sequence[Waiter[R]], results: Sequence[R | Exception]) -> None:
    by_loop: dict[asyncio.AbstractEventLoop, list[tuple[Waiter[R], R | Exception]]] = defaultdict(list)
    for waiter, result in zip(waiters, results, strict=True):
        if isinstance(waiter, Future):
            _settle([(waiter, result)])
        else:
            by_loop[waiter.get_loop()].append((waiter, result))
    for loop, settled in by_loop.items():
        with suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(_settle, settled)


def _settle(settled: Sequence[tuple[Waiter[R], R | Exception]]) -> None:
    for waiter, result in settled:
        if waiter.done():  # given up
            continue
        if isinstance(result, Exception):
            waiter.set_exception(result)
        else:
            waiter.set_result(result)
