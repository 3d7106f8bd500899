"""Processes that may end before any write to the store, the log or the blobs."""

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from core.blobs import FsspecBlobs
from core.events import Event, Topic
from core.ids import PolicyRef
from core.ports import Consumer, EventLog, Position, RebalanceListener, WeightsRef
from core.store import SqlStore
from core.store.work import Work
from serving.weights.published import BlobWeights


class Crash(Exception):
    """The end of the process."""


class Fuse:
    """A countdown that ends the process at call number `at`, from 0; None means never."""

    def __init__(self, at: int | None = None) -> None:
        self.at = at
        self.calls = 0

    def __call__(self) -> None:
        self.calls += 1
        if self.calls - 1 == self.at:
            raise Crash

    def set(self, after: int) -> None:
        """Set it to call number `after` from now on."""
        self.at = self.calls + after


class MortalStore:
    """A store whose process may end before a write."""

    def __init__(self, store: SqlStore, fuse: Fuse) -> None:
        self._store, self._fuse = store, fuse
        self.look, self.read, self.close = store.look, store.read, store.close

    wakes = False

    def wake(self, woken: threading.Event) -> None:
        self._store.wake(woken)

    @contextmanager
    def work(self) -> Iterator[Work]:
        self._fuse()
        with self._store.work() as work:
            yield work


class MortalLog:
    """A log whose process may end before an append or a commit. Its consumers end with the process."""

    def __init__(self, log: EventLog, fuse: Fuse) -> None:
        self._log, self._fuse = log, fuse
        self.append, self.partitions, self.close = log.append, log.partitions, log.close
        self.earliest, self.end, self.reader = log.earliest, log.end, log.reader
        self._members: list[Consumer] = []

    def append_blocking(self, topic: Topic, events: Sequence[Event]) -> list[Position]:
        self._fuse()
        return self._log.append_blocking(topic, events)

    def consumer(self, group: str, topics: Sequence[Topic], listener: RebalanceListener | None = None) -> Consumer:
        member = self._log.consumer(group, topics, listener)
        commit = member.commit

        def mortal_commit(offsets: Mapping[Any, int]) -> None:
            self._fuse()
            commit(offsets)

        member.commit = mortal_commit  # type: ignore[method-assign]
        self._members.append(member)
        return member

    def end_process(self) -> None:
        for member in self._members:
            member.close()


class MortalBlobs(FsspecBlobs):
    fuse = Fuse()

    def put(self, path: str, data: bytes) -> None:
        self.fuse()
        super().put(path, data)


class MortalWeights(BlobWeights):
    fuse = Fuse()

    def publish(self, version: PolicyRef, shards: Sequence[Path], parent: PolicyRef | None) -> WeightsRef:
        self.fuse()
        return super().publish(version, shards, parent)

    def discard(self, version: PolicyRef) -> None:
        self.fuse()
        super().discard(version)
