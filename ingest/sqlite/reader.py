"""Reading the embedded log."""

import heapq
import logging
import sqlite3
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from itertools import islice
from pathlib import Path

from core import telemetry
from core.clock import from_micros
from core.errors import NewerSchema
from core.events import Topic
from core.ports import Record, TopicPartition
from ingest.records import to_record
from ingest.sqlite.schema import explained

_MOST_BYTES = 16 << 20
"""Bytes of records that one poll returns, and a record more: a batch of the largest turns has to fit in memory."""
logger = logging.getLogger(__name__)
_Row = tuple[int, str, int, int, int, bytes]  # sequence, topic, partition, offset, appended_at, raw


class Wakeups:
    """Wakes this process's readers of a topic when it has grown; thread-safe."""

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


class SqliteReader:
    """Implements core.ports.LogReader.

    Records come in the order in which they were appended, over all partitions, so that two readings of one log see the
    same."""

    def __init__(
        self,
        path: Path,
        connection: sqlite3.Connection,
        sources: Sequence[TopicPartition],
        wakeups: Wakeups,
        poll_s: float,
    ) -> None:
        self._path = path
        self._connection = connection
        self._wakeups = wakeups
        self._poll_s = poll_s
        self._closed = False
        self._is_dry = False  # the last reading ended where the log does
        self._read_to = -1  # the log's latest sequence when nothing was left to read
        self._look_at_s = float("-inf")
        with explained(path):
            self._positions = {source: self._start(source) for source in sources}
        self._grown = wakeups.register(frozenset(source.topic for source in sources))

    def assignment(self) -> frozenset[TopicPartition]:
        return frozenset(self._positions)

    def poll(self, max_records: int, timeout_s: float) -> list[Record]:
        """Return the next records. Records that arrive one by one are collected for `poll_s`.

        Reading one costs as much as reading fifty, and so does most of what is done with them."""
        assert not self._closed, "poll after close"
        deadline = time.monotonic() + timeout_s
        if (early_s := min(self._look_at_s, deadline) - time.monotonic()) > 0:
            time.sleep(early_s)
        while True:
            self._grown.clear()  # before looking: what is appended from here on wakes us
            records = self._read(max_records)
            remaining = deadline - time.monotonic()
            if self._is_dry:
                self._look_at_s = time.monotonic() + self._poll_s
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

    def close(self) -> None:
        """Close the reader. Closing twice does nothing."""
        if not self._closed:
            self._closed = True
            self._wakeups.forget(self._grown)
            self._connection.close()

    def _start(self, source: TopicPartition) -> int:
        earliest = self._connection.execute(
            "SELECT min(record_offset) FROM records WHERE topic = ? AND partition = ?", (source.topic, source.partition)
        ).fetchone()[0]
        return earliest or 0

    def _read(self, max_records: int) -> list[Record]:
        self._is_dry = False
        with explained(self._path), self._snapshot() as latest:
            if latest == self._read_to:
                return []
            left = heapq.merge(*map(self._rows, self._positions))
            rows = list(_of_bytes(islice(left, max_records), _MOST_BYTES))
            self._is_dry = 0 < len(rows) < max_records and next(left, None) is None
        records = self._decode(rows)
        for record in records:
            self._notice_jump(record)
            self._positions[record.source] = record.offset + 1
        if not rows:
            self._read_to = latest
        return records

    def _notice_jump(self, record: Record) -> None:
        """Notice that the next records were deleted."""
        expected = self._positions[record.source]
        if record.offset > expected:
            telemetry.LOG_RESETS.labels(topic=record.topic).inc()
            telemetry.LOG_SKIPPED.labels(topic=record.topic).inc(record.offset - expected)
            logger.error(
                "%s: offsets %d to %d were dropped before they were read", record.source, expected, record.offset - 1
            )

    @contextmanager
    def _snapshot(self) -> Iterator[int]:
        """Begin a read transaction, in which all partitions end at the same moment: at the yielded sequence."""
        self._connection.execute("BEGIN")
        try:
            yield self._connection.execute("SELECT max(sequence) FROM records").fetchone()[0] or 0
        finally:
            self._connection.execute("COMMIT")

    def _rows(self, source: TopicPartition) -> Iterator[_Row]:
        """Yield rows lazily, in order of both offset and sequence.

        The sequence is unique: comparing rows stops there."""
        return self._connection.execute(
            "SELECT sequence, topic, partition, record_offset, appended_at, raw FROM records "
            "WHERE topic = ? AND partition = ? AND record_offset >= ? ORDER BY record_offset",
            (source.topic, source.partition, self._positions[source]),
        )

    def _decode(self, rows: Sequence[_Row]) -> list[Record]:
        """Decode rows up to the first of a newer schema; raise NewerSchema when it comes first."""
        records: list[Record] = []
        for _, topic, partition, offset, appended_at, raw in rows:
            try:
                records.append(
                    to_record(Topic(topic), partition, offset, from_micros(appended_at), raw, str(self._path))
                )
            except NewerSchema:
                if not records:
                    raise
                break
        return records


def _of_bytes(rows: Iterable[_Row], most: int) -> Iterator[_Row]:
    """Yield rows until they have `most` bytes together."""
    size = 0
    for row in rows:
        yield row
        size += len(row[-1])
        if size >= most:
            return
