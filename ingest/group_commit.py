"""Group commit: items that arrive while one commit runs share the next.

The durable write (an fsync) costs the same for one item and for a hundred, so one thread takes all waiting items,
applies them together, and notifies each event loop once about all of its items."""

import asyncio
import threading
from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Generic, TypeVar

from core.errors import LogUnavailable, OnwardError

T = TypeVar("T")
R = TypeVar("R")
Waiter = asyncio.Future[R] | Future[R]


class GroupCommit(Generic[T, R]):
    """A thread that calls `apply` with batches of items in their order of arrival.

    A batch that has `max_items` takes no more. It has more where one turn of an event loop submitted them together.
    `apply` returns one result, or one error, for each item. When it raises an OnwardError or OSError, every item of the
    batch fails with that error."""

    def __init__(self, name: str, apply: Callable[[Sequence[T]], Sequence[R | Exception]], max_items: int) -> None:
        self._apply = apply
        self._max_items = max_items
        self._queue: SimpleQueue[list[tuple[T, Waiter[R]]] | None] = SimpleQueue()
        self._gathered: dict[asyncio.AbstractEventLoop, list[tuple[T, Waiter[R]]]] = {}
        self._lock = threading.Lock()  # so that nothing queues up behind the end
        self._closed = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def submit(self, item: T) -> asyncio.Future[R]:
        """Submit from the running event loop. Cancelling the wait does not withdraw the item.

        What is submitted before the loop comes round goes to the thread together: waking it costs more than an item.
        """
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[R] = loop.create_future()
        with self._lock:
            self._check_open()
            gathered = self._gathered.get(loop)
            if gathered is None:
                gathered = self._gathered[loop] = []
                loop.call_soon(self._hand_over, loop)
            gathered.append((item, waiter))
        return waiter

    def _hand_over(self, loop: asyncio.AbstractEventLoop) -> None:
        with self._lock:
            gathered = self._gathered.pop(loop, None)
            if gathered is not None:  # else `close` has handed them over
                self._queue.put(gathered)

    def submit_blocking(self, item: T) -> R:
        """Submit from a thread."""
        waiter: Future[R] = Future()
        with self._lock:
            self._check_open()
            self._queue.put([(item, waiter)])
        return waiter.result()

    def close(self) -> None:
        """Finish what was submitted; refuse later items."""
        with self._lock:
            if not self._closed:
                self._closed = True
                for gathered in self._gathered.values():
                    self._queue.put(gathered)
                self._gathered.clear()
                self._queue.put(None)
        self._thread.join()

    def _check_open(self) -> None:
        if self._closed:
            raise LogUnavailable(f"{self._thread.name} is closed")

    def _run(self) -> None:
        batch: list[tuple[T, Waiter[R]]] = []
        try:
            while batch := self._next_batch():
                _deliver([waiter for _, waiter in batch], self._results([item for item, _ in batch]))
        finally:
            self._refuse(batch)

    def _next_batch(self) -> list[tuple[T, Waiter[R]]]:
        """Return the waiting items, or wait for some; empty at the end."""
        batch: list[tuple[T, Waiter[R]]] = []
        entry = self._queue.get()
        while entry is not None:
            batch += entry
            if len(batch) >= self._max_items:
                return batch
            try:
                entry = self._queue.get_nowait()
            except Empty:
                return batch
        if batch:
            self._queue.put(None)  # the end comes after these
        return batch

    def _results(self, items: Sequence[T]) -> Sequence[R | Exception]:
        try:
            results = self._apply(items)
        except (OnwardError, OSError) as error:
            return [error] * len(items)
        assert len(results) == len(items)
        return results

    def _refuse(self, batch: list[tuple[T, Waiter[R]]]) -> None:
        """Refuse all items after a defect in `apply`, which ends the thread, so that nobody waits for ever."""
        with self._lock:
            self._closed = True
        while not self._queue.empty():
            entry = self._queue.get()
            if entry is not None:
                batch += entry
        broken = LogUnavailable(f"{self._thread.name} broke down; whether this was appended is unknown")
        _deliver([waiter for _, waiter in batch], [broken] * len(batch))


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
