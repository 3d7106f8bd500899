"""The durable log."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Protocol

import msgspec

from core.events import Event, Topic, TopicPartition


class Position(msgspec.Struct, frozen=True, kw_only=True):
    """Where a record was put. The offset is -1 while it waits, durably, in the spool: the log gives it later; so is the
    partition where the log has not said yet how many there are."""

    topic: Topic
    partition: int
    offset: int


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """A record as read. `event` is None when `raw` does not decode; `error` then says why."""

    topic: Topic
    partition: int
    offset: int
    appended_at: datetime
    raw: bytes
    event: Event | None
    error: str | None = None

    @property
    def source(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)


class LogReader(Protocol):
    """Reads all partitions of its topics, beside any number of others; whoever has it keeps the positions. Not
    thread-safe: one thread polls, seeks and closes.

    An offset is always the *next* message: a position of 7 says that 0..6 were read.
    """

    def assignment(self) -> frozenset[TopicPartition]: ...

    def poll(self, max_records: int, timeout_s: float) -> list[Record]:
        """Records in offset order per partition; [] after `timeout_s` with nothing to read, which says nothing of
        the log's end: that is reached when positions are `EventLog.end`.

        Starts at the earliest record. Where the log has dropped what comes next, it goes on with the earliest that is
        left, counts that and says so. Raises LogUnavailable where the log says that it is away, and NewerSchema at a
        record of a newer build: the reader stays before it.
        """
        ...

    def position(self, partition: TopicPartition) -> int: ...

    def seek(self, partition: TopicPartition, offset: int) -> None: ...

    def close(self) -> None: ...


class RebalanceListener(Protocol):
    """Told from within `Consumer.poll` and `close`, on the caller's thread. It may use the consumer: commit, seek, ask
    for positions; not poll."""

    def on_assigned(self, partitions: frozenset[TopicPartition]) -> None:
        """Comes before any record of them. Where it raises, so does `poll`, and the next poll tells it again."""

    def on_revoked(self, partitions: frozenset[TopicPartition]) -> None:
        """Still the owner: last chance to commit. The next owner starts after this returned."""

    def on_lost(self, partitions: frozenset[TopicPartition]) -> None:
        """Another member may already own them: commits would be fenced."""


class Consumer(LogReader, Protocol):
    """One member of a group, whose members share the partitions. Starts at the committed offsets, and at the earliest
    record where nothing was committed. What it is assigned may change within each `poll`."""

    def committed(self, partition: TopicPartition) -> int | None:
        """Of the group. Raises LogUnavailable."""
        ...

    def commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Durable when it returns. Raises Fenced when this member is no longer of the group's current generation or
        does not own one of the partitions (then nothing was committed), which tells a zombie from the rightful owner;
        LogUnavailable when it is unknown whether it was committed."""
        ...


class EventLog(Protocol):
    """The durable, ordered, partitioned log. Thread-safe. Making one, or its readers, does not wait for what may be
    away: their first use may, and raises LogUnavailable."""

    @property
    def max_record_bytes(self) -> int | None:
        """Of an encoded event: larger ones are refused with TooLarge. None: any."""
        ...

    async def append(self, topic: Topic, event: Event) -> Position:
        """Durable when it returns. Never blocks the event loop. Raises LogUnavailable; then nothing was appended
        unless the message says that it is unknown."""
        ...

    def append_blocking(self, topic: Topic, events: Sequence[Event]) -> list[Position]:
        """The same for threads; all events in one batch, in order per partition."""
        ...

    def consumer(self, group: str, topics: Sequence[Topic], listener: RebalanceListener | None = None) -> Consumer:
        """Join a group. Raises GroupBusy where only one member is possible and there is one."""
        ...

    def reader(self, topics: Sequence[Topic]) -> LogReader:
        """For those who keep their positions themselves: no group, no commits."""
        ...

    def partitions(self, topic: Topic) -> int:
        """Raises LogUnavailable while the log has never said it."""
        ...

    def earliest(self, partition: TopicPartition) -> int:
        """Of the records that are left. Raises LogUnavailable."""
        ...

    def end(self, partition: TopicPartition) -> int:
        """The offset that the next record will have. Raises LogUnavailable."""
        ...

    def offset_at(self, partition: TopicPartition, moment: datetime) -> int:
        """Of the first record left that was appended at `moment` or later, to the millisecond; the end where there is
        none. Raises LogUnavailable."""
        ...

    def committed(self, group: str, partition: TopicPartition) -> int | None:
        """Of a group, asked by anybody; None: it has committed nothing. Raises LogUnavailable."""
        ...

    def delete_before(self, partition: TopicPartition, offset: int) -> None:
        """Drop the records before `offset`, for good; the latest one may stay. The end stays what it is. Again: nothing
        happens. Raises LogUnavailable; then some of them may be gone."""
        ...

    def close(self) -> None: ...
