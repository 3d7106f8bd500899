"""The durable log."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Protocol

import msgspec

from core.events import Event, Topic, TopicPartition


class Position(msgspec.Struct, frozen=True, kw_only=True):
    """The place of a record in the log.

    The offset is -1 while the record waits, durably, in the spool: the log gives it later. So is the partition until
    the log has said how many there are."""

    topic: Topic
    partition: int
    offset: int
    size: int
    """The bytes of the record where it was appended."""


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
    """Reads all partitions of its topics, independently of other readers; its user keeps the positions.

    Not thread-safe: one thread polls, seeks and closes. An offset is always that of the *next* record: a position of 7
    says that 0..6 were read."""

    def assignment(self) -> frozenset[TopicPartition]: ...

    def poll(self, max_records: int, timeout_s: float) -> list[Record]:
        """Return records in offset order per partition; [] after `timeout_s` with nothing to read.

        An empty result does not mean the end of the log: that is reached when positions equal `EventLog.end`. It starts
        at the earliest record. When the log has dropped the next records, it continues with the earliest that is left,
        counts the gap and logs it. Raises LogUnavailable when the log is unreachable, and NewerSchema at a record of a
        newer build: the reader stays before it."""
        ...

    def position(self, partition: TopicPartition) -> int: ...

    def seek(self, partition: TopicPartition, offset: int) -> None: ...

    def close(self) -> None: ...


class RebalanceListener(Protocol):
    """Called from within `Consumer.poll` and `close`, on the caller's thread.

    It may use the consumer to commit, seek or ask for positions, but not to poll."""

    def on_assigned(self, partitions: frozenset[TopicPartition]) -> None:
        """Comes before any record of them. Where it raises, so does `poll`, and the next poll tells it again."""

    def on_revoked(self, partitions: frozenset[TopicPartition]) -> None:
        """Still the owner: last chance to commit. The next owner starts after this returned."""

    def on_lost(self, partitions: frozenset[TopicPartition]) -> None:
        """Another member may already own them: commits would be fenced."""


class Consumer(LogReader, Protocol):
    """One member of a group, whose members share the partitions.

    It starts at the committed offsets, and at the earliest record when nothing was committed. Its assignment may change
    in each `poll`."""

    def committed(self, partition: TopicPartition) -> int | None:
        """Return the group's committed offset. Raises LogUnavailable."""
        ...

    def commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Commit offsets; durable when it returns.

        Raises Fenced when this member is no longer of the group's current generation or does not own one of the
        partitions (then nothing was committed), which tells a zombie from the rightful owner; LogUnavailable when it is
        unknown whether it was committed."""
        ...


class EventLog(Protocol):
    """The durable, ordered, partitioned log; thread-safe.

    Making one, or its readers, does not wait for a server: the first use may, and raises LogUnavailable."""

    @property
    def max_record_bytes(self) -> int | None:
        """The largest encoded event; larger ones are refused with TooLarge. None: no limit."""
        ...

    async def append(self, topic: Topic, event: Event) -> Position:
        """Append an event; durable when it returns. It never blocks the event loop.

        Raises LogUnavailable; then nothing was appended unless the message says that it is unknown."""
        ...

    def append_blocking(self, topic: Topic, events: Sequence[Event]) -> list[Position]:
        """Append from a thread; all events in one batch, in order per partition."""
        ...

    def consumer(self, group: str, topics: Sequence[Topic], listener: RebalanceListener | None = None) -> Consumer:
        """Join a group. Raises GroupBusy where only one member is possible and there is one."""
        ...

    def reader(self, topics: Sequence[Topic]) -> LogReader:
        """Return a reader whose user keeps the positions: no group, no commits."""
        ...

    def partitions(self, topic: Topic) -> int:
        """Return the number of partitions. Raises LogUnavailable until the log has said it."""
        ...

    def earliest(self, partition: TopicPartition) -> int:
        """Return the offset of the earliest record that is left. Raises LogUnavailable."""
        ...

    def end(self, partition: TopicPartition) -> int:
        """Return the offset that the next record will have. Raises LogUnavailable."""
        ...

    def offset_at(self, partition: TopicPartition, moment: datetime) -> int:
        """Return the offset of the first record left that was appended at `moment` or later, to the millisecond.

        The end, when there is none. Raises LogUnavailable."""
        ...

    def committed(self, group: str, partition: TopicPartition) -> int | None:
        """Return a group's committed offset, None when it has committed nothing. Raises LogUnavailable."""
        ...

    def delete_before(self, partition: TopicPartition, offset: int) -> None:
        """Delete the records before `offset` for good; the latest one may stay, and the end does not change.

        Repeating it does nothing. Raises LogUnavailable; then some of them may be gone."""
        ...

    def restore(self, records: Sequence[Record]) -> None:
        """Append a backup's records at their own offsets, in a log that nobody else uses yet.

        A log whose server sets the times of appending gives them that of now.

        What lies before a partition's first record counts as deleted. Where this log can leave no gap between two
        records, the one after it fills the gap: it is then read more than once. Raises Conflict naming the partition
        that has such an offset already, LogUnavailable."""
        ...

    def skip_to(self, partition: TopicPartition, offset: int) -> None:
        """Let a partition's next record have this offset, as if those before it were deleted, where nobody else writes.

        Does nothing where the partition ends there, or later. A log that counts from its latest record then has one
        that says nothing. Raises LogUnavailable."""
        ...

    def close(self) -> None: ...
