"""The embedded event log: topics and partitions in one SQLite file, for one machine.

Any number of processes append and read. Within a process one thread does all the writing, in group commits; it wakes
readers of the same process, those of other processes poll."""

import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path

import msgspec

from core import telemetry
from core.clock import to_micros
from core.codec import encode
from core.errors import Conflict, Fenced, LogError, LogUnavailable
from core.events import Event, Topic
from core.ports import Consumer, LogReader, Position, RebalanceListener, Record, TopicPartition
from ingest.group_commit import GroupCommit
from ingest.routing import partition_of
from ingest.sqlite.consumer import SqliteConsumer, committed
from ingest.sqlite.membership import GroupLock
from ingest.sqlite.reader import SqliteReader, Wakeups
from ingest.sqlite.schema import connect, create, explained, writing

_MAX_BATCH_ITEMS = 512
_DELETED_AT_ONCE = 500
_COLUMNS = 6
_MAX_INSERT_ROWS = 128  # rows of one statement; each count is a prepared statement of its own


class _Append(msgspec.Struct, frozen=True):
    """Records of one topic: (partition, raw)."""

    topic: Topic
    records: tuple[tuple[int, bytes], ...]


class _Join(msgspec.Struct, frozen=True):
    group: str


class _Commit(msgspec.Struct, frozen=True):
    group: str
    epoch: int
    offsets: tuple[tuple[TopicPartition, int], ...]


class _Delete(msgspec.Struct, frozen=True):
    source: TopicPartition
    before: int


class _Restore(msgspec.Struct, frozen=True):
    records: tuple[Record, ...]


_Item = _Append | _Join | _Commit | _Delete | _Restore
_Result = list[Position] | int | None


class SqliteEventLog:
    """Implements core.ports.EventLog."""

    def __init__(self, path: Path, partitions: int, poll_s: float, busy_timeout_s: float = 5.0) -> None:
        """Open or make the file.

        Raises ConfigError when it was made with other partitions, LogError when it is corrupt, LogUnavailable when it
        cannot be opened; each names the file."""
        self._path = path
        self._partitions = partitions
        self._poll_s = poll_s
        self._busy_timeout_s = busy_timeout_s
        with explained(path):
            self._writer = connect(path, busy_timeout_s)
            create(self._writer, path, partitions)
            self._reader = connect(path, busy_timeout_s)
        self._reading = threading.Lock()
        self._wakeups = Wakeups()
        self._last_sequence = -1  # the latest record, as this writer left it
        self._ends: dict[tuple[str, int], int] = {}  # valid while nobody else appends
        self._commits = GroupCommit[_Item, _Result]("log-writer", self._apply, _MAX_BATCH_ITEMS)
        self._closed = False

    @property
    def max_record_bytes(self) -> None:
        return None

    # ------------------------------------------------------------------------------------------ appending

    async def append(self, topic: Topic, event: Event) -> Position:
        positions = await self._commits.submit(_Append(topic, (self._placed(event),)))
        assert isinstance(positions, list)
        return positions[0]

    def append_blocking(self, topic: Topic, events: Sequence[Event]) -> list[Position]:
        if not events:
            return []
        positions = self._commits.submit_blocking(_Append(topic, tuple(map(self._placed, events))))
        assert isinstance(positions, list)
        return positions

    def _placed(self, event: Event) -> tuple[int, bytes]:
        return partition_of(event, self._partitions), encode(event)

    # ------------------------------------------------------------------------------------------ the writer's thread

    def _apply(self, items: Sequence[_Item]) -> Sequence[_Result | Exception]:
        appends = [item for item in items if isinstance(item, _Append)]
        results: list[_Result | Exception]
        try:
            with writing(self._writer, self._path):
                rest = iter(self._insert(appends) if appends else ())
                if len(appends) == len(items):
                    results = list(rest)
                else:
                    results = [next(rest) if isinstance(item, _Append) else self._manage(item) for item in items]
        except (LogUnavailable, LogError):
            self._last_sequence = -1  # what was counted did not happen
            telemetry.LOG_APPEND_FAILURES.inc()
            raise
        self._tell(appends)
        return results

    def _tell(self, appends: Sequence[_Append]) -> None:
        """Count what is durable now, and wake its readers."""
        appended: Counter[Topic] = Counter()
        for append in appends:
            appended[append.topic] += len(append.records)
        for topic, count in appended.items():
            telemetry.LOG_APPENDS.labels(topic=topic).inc(count)
        self._wakeups.wake(appended.keys())

    def _insert(self, appends: Sequence[_Append]) -> list[list[Position]]:
        latest = self._writer.execute("SELECT max(sequence) FROM records").fetchone()[0] or 0
        if latest != self._last_sequence:
            self._ends.clear()  # another process appended
        now, ends = time.time_ns() // 1000, self._ends
        values: list[int | str | bytes] = []
        positions: list[list[Position]] = []
        topic: Topic | None = None
        for append in appends:
            if topic is not append.topic:
                topic = append.topic
                text = topic.value  # sqlite3 binds a plain str several times faster
            placed = []
            for partition, raw in append.records:
                place = text, partition
                offset = ends.get(place)
                if offset is None:
                    offset = _end(self._writer, TopicPartition(topic, partition))
                ends[place] = offset + 1
                latest += 1
                values += (latest, text, partition, offset, now, raw)
                placed.append(Position(topic=topic, partition=partition, offset=offset, size=len(raw)))
            positions.append(placed)
        for start in range(0, len(values), _MAX_INSERT_ROWS * _COLUMNS):
            chunk = values[start : start + _MAX_INSERT_ROWS * _COLUMNS]
            self._writer.execute(_insert_statement(len(chunk) // _COLUMNS), chunk)
        self._last_sequence = latest
        return positions

    def _manage(self, item: _Item) -> int | Exception | None:
        match item:
            case _Join(group):
                statement = (
                    "INSERT INTO groups VALUES (?, 1) "
                    "ON CONFLICT (consumer_group) DO UPDATE SET epoch = epoch + 1 RETURNING epoch"
                )
                return int(self._writer.execute(statement, (group,)).fetchone()[0])
            case _Commit(group, epoch, offsets):
                current = self._writer.execute("SELECT epoch FROM groups WHERE consumer_group = ?", (group,)).fetchone()
                if current != (epoch,):
                    return Fenced(f"group {group} has had another member since epoch {epoch}")
                self._writer.executemany(
                    "INSERT OR REPLACE INTO offsets VALUES (?, ?, ?, ?)",
                    [(group, source.topic, source.partition, offset) for source, offset in offsets],
                )
                return None
            case _Delete(source, before):
                return self._writer.execute(
                    "DELETE FROM records WHERE topic = ? AND partition = ? AND record_offset < ?",
                    (source.topic, source.partition, before),
                ).rowcount
            case _Restore(records):
                return self._put_back(records)
        raise AssertionError(item)

    def _put_back(self, records: Sequence[Record]) -> Conflict | None:
        """Insert records at their offsets, all of them or none."""
        for source in {record.source for record in records}:
            first = next(record.offset for record in records if record.source == source)
            if (end := _end(self._writer, source)) > first:
                return Conflict(f"{source}: the log has records up to offset {end} already")
        latest = self._writer.execute("SELECT max(sequence) FROM records").fetchone()[0] or 0
        for sequence, record in enumerate(records, latest + 1):
            appended_at = to_micros(record.appended_at)
            row = (sequence, record.topic.value, record.partition, record.offset, appended_at, record.raw)
            self._writer.execute(_insert_statement(1), row)
        self._ends.clear()
        return None

    # ------------------------------------------------------------------------------------------ reading

    def consumer(self, group: str, topics: Sequence[Topic], listener: RebalanceListener | None = None) -> Consumer:
        lock = GroupLock(self._path, group)
        with ExitStack() as undo:
            undo.callback(lock.release)
            epoch = self._commits.submit_blocking(_Join(group))
            assert isinstance(epoch, int)
            connection = connect(self._path, self._busy_timeout_s)
            undo.callback(connection.close)
            member = SqliteConsumer(
                path=self._path,
                connection=connection,
                group=group,
                sources=self._sources(topics),
                commit=lambda offsets: self._commit(_Commit(group, epoch, tuple(offsets.items()))),
                lock=lock,
                wakeups=self._wakeups,
                poll_s=self._poll_s,
                listener=listener,
            )
            undo.pop_all()
        return member

    def reader(self, topics: Sequence[Topic]) -> LogReader:
        with ExitStack() as undo:
            connection = connect(self._path, self._busy_timeout_s)
            undo.callback(connection.close)
            reader = SqliteReader(self._path, connection, self._sources(topics), self._wakeups, self._poll_s)
            undo.pop_all()
        return reader

    def _sources(self, topics: Sequence[Topic]) -> list[TopicPartition]:
        return [TopicPartition(topic, index) for topic in topics for index in range(self._partitions)]

    def _commit(self, item: _Commit) -> None:
        self._commits.submit_blocking(item)

    def partitions(self, topic: Topic) -> int:
        return self._partitions

    def earliest(self, partition: TopicPartition) -> int:
        with self._reading, explained(self._path):
            found = self._reader.execute(
                "SELECT min(record_offset) FROM records WHERE topic = ? AND partition = ?",
                (partition.topic, partition.partition),
            ).fetchone()[0]
        return found or 0

    def end(self, partition: TopicPartition) -> int:
        with self._reading, explained(self._path):
            return _end(self._reader, partition)

    def offset_at(self, partition: TopicPartition, moment: datetime) -> int:
        """Return the offset of the first record at or after a time. It looks at all records before it."""
        with self._reading, explained(self._path):
            found = self._reader.execute(
                "SELECT record_offset FROM records WHERE topic = ? AND partition = ? AND appended_at >= ? "
                "ORDER BY record_offset LIMIT 1",
                (partition.topic, partition.partition, to_micros(moment)),
            ).fetchone()
            return _end(self._reader, partition) if found is None else int(found[0])

    def committed(self, group: str, partition: TopicPartition) -> int | None:
        with self._reading, explained(self._path):
            return committed(self._reader, group, partition)

    def delete_before(self, partition: TopicPartition, offset: int) -> None:
        """Delete a partition's records before an offset, except the latest, from which the next offset is counted.

        The file does not shrink; new records use the freed space."""
        last = min(offset, self.end(partition) - 1)
        for before in range(self.earliest(partition), last, _DELETED_AT_ONCE):  # appends go on in between
            self._commits.submit_blocking(_Delete(partition, min(before + _DELETED_AT_ONCE, last)))

    def restore(self, records: Sequence[Record]) -> None:
        self._commits.submit_blocking(_Restore(tuple(records)))

    def skip_to(self, partition: TopicPartition, offset: int) -> None:
        """Put a record that says nothing just before the offset, since the next one is counted from the latest."""
        if self.end(partition) < offset:
            self.restore([_nothing(partition, offset - 1)])

    def close(self) -> None:
        """Close the log; consumers are closed by those who made them. Closing twice does nothing."""
        self._commits.close()
        if not self._closed:
            self._closed = True
            self._writer.close()
            with self._reading:
                self._reader.close()


def _nothing(source: TopicPartition, offset: int) -> Record:
    now = datetime.now(UTC)
    return Record(topic=source.topic, partition=source.partition, offset=offset, appended_at=now, raw=b"", event=None)


def _end(connection: sqlite3.Connection, source: TopicPartition) -> int:
    latest = connection.execute(
        "SELECT max(record_offset) FROM records WHERE topic = ? AND partition = ?", (source.topic, source.partition)
    ).fetchone()[0]
    return 0 if latest is None else int(latest) + 1


@lru_cache(maxsize=_MAX_INSERT_ROWS)
def _insert_statement(rows: int) -> str:
    """Return a statement for so many records.

    OR FAIL: where it fails midway its transaction is rolled back, so it needs no journal to undo its own rows by."""
    return "INSERT OR FAIL INTO records VALUES " + ", ".join([f"({', '.join('?' * _COLUMNS)})"] * rows)
