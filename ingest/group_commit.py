"""Group commit: items that arrive while one commit runs share the next.

The durable write (an fsync) costs the same for one item and for a hundred, so one thread takes all waiting items,
applies them together, and notifies each event loop once about all of its items. A loop hands over at the end of its
turn what was submitted in it, so that the thread is not woken for the first of many."""

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
Waiting = list[tuple[T, Waiter[R]]]


class GroupCommit(Generic[T, R]):
    """A thread that calls `apply` with batches of items in their order of arrival.

    `apply` returns one result, or one error, for each item. When it raises an OnwardError or OSError, every item of the
    batch fails with that error."""

    def __init__(self, name: str, apply: Callable[[Sequence[T]], Sequence[R | Exception]], max_items: int) -> None:
        self._apply = apply
        self._max_items = max_items
        self._queue: SimpleQueue[Waiting[T, R] | None] = SimpleQueue()
        self._rest: Waiting[T, R] = []  # of what was handed over, beyond a batch
        self._of_turn: dict[asyncio.AbstractEventLoop, Waiting[T, R]] = {}
        self._lock = threading.Lock()  # so that nothing queues up behind the end
        self._closed = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def submit(self, item: T) -> asyncio.Future[R]:
        """Submit from the running event loop. Cancelling the wait does not withdraw the item."""
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[R] = loop.create_future()
        with self._lock:
            if self._closed:
                raise self._is_closed()
            waiting = self._of_turn.setdefault(loop, [])
            waiting.append((item, waiter))
        if len(waiting) == 1:
            loop.call_soon(self._hand_over, loop)
        return waiter

    def submit_blocking(self, item: T) -> R:
        """Submit from a thread."""
        waiter: Future[R] = Future()
        with self._lock:
            if self._closed:
                raise self._is_closed()
            self._queue.put([(item, waiter)])
        return waiter.result()

    def close(self) -> None:
        """Finish what was submitted; refuse later items."""
        with self._lock:
            if not self._closed:
                self._closed = True
                for loop in list(self._of_turn):
                    self._queue.put(self._of_turn.pop(loop))
                self._queue.put(None)
        self._thread.join()

    def _hand_over(self, loop: asyncio.AbstractEventLoop) -> None:
        with self._lock:
            if loop in self._of_turn:  # else it was closed meanwhile
                self._queue.put(self._of_turn.pop(loop))

    def _is_closed(self) -> LogUnavailable:
        return LogUnavailable(f"{self._thread.name} is closed")

    def _run(self) -> None:
        batch: Waiting[T, R] = []
        try:
            while batch := self._next_batch():
                _deliver([waiter for _, waiter in batch], self._results([item for item, _ in batch]))
        finally:
            self._refuse(batch)

    def _next_batch(self) -> Waiting[T, R]:
        """Return the waiting items, or wait for some; empty at the end."""
        batch: Waiting[T, R] = []
        entry = self._rest or self._queue.get()
        self._rest = []
        while entry is not None:
            room = self._max_items - len(batch)
            batch += entry[:room]
            self._rest = entry[room:]
            if len(batch) == self._max_items:
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
            batch = [*batch, *self._rest, *(each for waiting in self._of_turn.values() for each in waiting)]
            self._of_turn.clear()
        while not self._queue.empty():
            batch += self._queue.get() or []
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
