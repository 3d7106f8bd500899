"""Reading the embedded log: one member owns all partitions of its group."""

import heapq
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from itertools import islice
from pathlib import Path

from core.errors import NewerSchema, Undecodable
from core.events import Event, Topic
from core.ports import RebalanceListener, Record, TopicPartition
from core.store.database import from_micros
from ingest.codec import decode
from ingest.membership import GroupLock
from ingest.sqlite_schema import explained

_Row = tuple[int, str, int, int, int, bytes]  # sequence, topic, partition, offset, appended_at, raw


class Wakeups:
    """Tells this process's readers of a topic that it has grown. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sleepers: list[tuple[frozenset[Topic], threading.Event]] = []

    def register(self, topics: frozenset[Topic]) -> threading.Event:
        grown = threading.Event()
        with self._lock:
            self._sleepers.append((topics, grown))
        return grown

    def forget(self, grown: threading.Event) -> None:
        with self._lock:
            self._sleepers = [sleeper for sleeper in self._sleepers if sleeper[1] is not grown]

    def wake(self, topics: AbstractSet[Topic]) -> None:
        with self._lock:
            for wanted, grown in self._sleepers:
                if not wanted.isdisjoint(topics):
                    grown.set()


class SqliteConsumer:
    """Implements core.ports.Consumer. Records come in the order in which they were appended, over all partitions, so
    that two readings of one log see the same."""

    def __init__(
        self,
        *,
        path: Path,
        connection: sqlite3.Connection,
        group: str,
        epoch: int,
        sources: Sequence[TopicPartition],
        commit: Callable[[Mapping[TopicPartition, int]], None],
        lock: GroupLock,
        wakeups: Wakeups,
        poll_s: float,
        listener: RebalanceListener | None,
    ) -> None:
        self._path = path
        self._connection = connection
        self._group = group
        self._epoch = epoch
        self._commit = commit
        self._lock = lock
        self._wakeups = wakeups
        self._poll_s = poll_s
        self._listener = listener
        self._announced = False
        self._closed = False
        self._read_to = -1  # the log's latest sequence when nothing was left to read
        self._positions = dict.fromkeys(sources, 0)
        with explained(path):
            for source in sources:
                self._positions[source] = self._start(source)
        self._grown = wakeups.register(frozenset(source.topic for source in sources))

    @property
    def epoch(self) -> int:
        return self._epoch

    def assignment(self) -> frozenset[TopicPartition]:
        return frozenset(self._positions)

    def poll(self, max_records: int, timeout_s: float) -> list[Record]:
        assert not self._closed, "poll of a closed consumer"
        if not self._announced:
            self._announced = True
            if self._listener is not None:
                self._listener.on_assigned(self.assignment())
        deadline = time.monotonic() + timeout_s
        while True:
            self._grown.clear()  # before looking: what is appended from here on wakes us
            records = self._read(max_records)
            remaining = deadline - time.monotonic()
            if records or remaining <= 0:
                return records
            self._grown.wait(min(self._poll_s, remaining))

    def position(self, partition: TopicPartition) -> int:
        return self._positions[partition]

    def seek(self, partition: TopicPartition, offset: int) -> None:
        assert partition in self._positions, f"{partition} is not assigned"
        assert offset >= 0
        self._positions[partition] = offset
        self._read_to = -1

    def committed(self, partition: TopicPartition) -> int | None:
        with explained(self._path):
            return self._committed(partition)

    def commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        assert not self._closed, "commit of a closed consumer"
        assert offsets.keys() <= self._positions.keys(), "commit of partitions that are not assigned"
        if offsets:
            self._commit(offsets)

    def close(self) -> None:
        """Again: nothing happens."""
        if self._closed:
            return
        if self._listener is not None and self._announced:
            self._listener.on_revoked(self.assignment())
        self._closed = True
        self._wakeups.forget(self._grown)
        self._connection.close()
        self._lock.release()

    def _committed(self, source: TopicPartition) -> int | None:
        row = self._connection.execute(
            "SELECT next_offset FROM offsets WHERE consumer_group = ? AND topic = ? AND partition = ?",
            (self._group, source.topic, source.partition),
        ).fetchone()
        return None if row is None else int(row[0])

    def _start(self, source: TopicPartition) -> int:
        committed = self._committed(source)
        if committed is not None:
            return committed
        earliest = self._connection.execute(
            "SELECT min(record_offset) FROM records WHERE topic = ? AND partition = ?", (source.topic, source.partition)
        ).fetchone()[0]
        return earliest or 0

    def _read(self, max_records: int) -> list[Record]:
        with explained(self._path), self._snapshot() as latest:
            if latest == self._read_to:
                return []
            rows = list(islice(heapq.merge(*map(self._rows, self._positions)), max_records))
        records = self._decode(rows)
        for record in records:
            self._positions[record.source] = record.offset + 1
        if not rows:
            self._read_to = latest
        return records

    @contextmanager
    def _snapshot(self) -> Iterator[int]:
        """A read transaction, in which all partitions end at the same moment: at the yielded sequence."""
        self._connection.execute("BEGIN")
        try:
            yield self._connection.execute("SELECT max(sequence) FROM records").fetchone()[0] or 0
        finally:
            self._connection.execute("COMMIT")

    def _rows(self, source: TopicPartition) -> Iterator[_Row]:
        """Lazily, in order of both offset and sequence. The sequence is unique: comparing rows stops there."""
        return self._connection.execute(
            "SELECT sequence, topic, partition, record_offset, appended_at, raw FROM records "
            "WHERE topic = ? AND partition = ? AND record_offset >= ? ORDER BY record_offset",
            (source.topic, source.partition, self._positions[source]),
        )

    def _decode(self, rows: Sequence[_Row]) -> list[Record]:
        """Up to the first record of a newer schema, which is raised when it comes first."""
        records: list[Record] = []
        for _, topic, partition, offset, appended_at, raw in rows:
            event: Event | None = None
            error: str | None = None
            try:
                event = decode(raw)
            except NewerSchema as newer:
                if not records:
                    raise NewerSchema(f"{self._path}: {topic}:{partition} offset {offset}: {newer}") from newer
                break
            except Undecodable as undecodable:
                error = str(undecodable)
            records.append(
                Record(
                    topic=Topic(topic),
                    partition=partition,
                    offset=offset,
                    appended_at=from_micros(appended_at),
                    raw=raw,
                    event=event,
                    error=error,
                )
            )
        return records
