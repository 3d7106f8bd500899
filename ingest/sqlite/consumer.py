"""Consumer groups of the embedded log: one member owns all partitions."""

import sqlite3
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from core.errors import Fenced
from core.ports import RebalanceListener, Record, TopicPartition
from ingest.sqlite.membership import GroupLock
from ingest.sqlite.reader import SqliteReader, Wakeups
from ingest.sqlite.schema import explained


class SqliteConsumer(SqliteReader):
    """Implements core.ports.Consumer."""

    def __init__(
        self,
        *,
        path: Path,
        connection: sqlite3.Connection,
        group: str,
        sources: Sequence[TopicPartition],
        commit: Callable[[Mapping[TopicPartition, int]], None],
        lock: GroupLock,
        wakeups: Wakeups,
        poll_s: float,
        listener: RebalanceListener | None,
    ) -> None:
        self._group = group
        self._commit = commit
        self._lock = lock
        self._listener = listener
        self._announced = False
        super().__init__(path, connection, sources, wakeups, poll_s)

    def poll(self, max_records: int, timeout_s: float) -> list[Record]:
        if not self._announced:
            if self._listener is not None:
                self._listener.on_assigned(self.assignment())
            self._announced = True
        return super().poll(max_records, timeout_s)

    def committed(self, partition: TopicPartition) -> int | None:
        with explained(self._path):
            return committed(self._connection, self._group, partition)

    def commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        assert not self._closed, "commit after close"
        if strange := offsets.keys() - self._positions.keys():
            raise Fenced(f"group {self._group}: {', '.join(map(str, sorted(strange)))} are not ours")
        if offsets:
            self._commit(offsets)

    def close(self) -> None:
        if not self._closed:
            if self._listener is not None and self._announced:
                self._listener.on_revoked(self.assignment())
            super().close()
            self._lock.release()

    def _start(self, source: TopicPartition) -> int:
        offset = committed(self._connection, self._group, source)
        return super()._start(source) if offset is None else offset


def committed(connection: sqlite3.Connection, group: str, source: TopicPartition) -> int | None:
    row = connection.execute(
        "SELECT next_offset FROM offsets WHERE consumer_group = ? AND topic = ? AND partition = ?",
        (group, source.topic, source.partition),
    ).fetchone()
    return None if row is None else int(row[0])
