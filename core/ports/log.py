"""The durable log."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Protocol

import msgspec

from core.events import Event, Topic


class TopicPartition(msgspec.Struct, frozen=True, order=True):
    topic: Topic
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}:{self.partition}"


class Position(msgspec.Struct, frozen=True, kw_only=True):
    """Where a record was put. The offset is -1 while it waits, durably, in the spool: the log gives it later."""

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


class RebalanceListener(Protocol):
    """Told from within `Consumer.poll`, on the caller's thread."""

    def on_assigned(self, partitions: frozenset[TopicPartition]) -> None: ...

    def on_revoked(self, partitions: frozenset[TopicPartition]) -> None:
        """Still the owner: last chance to commit."""

    def on_lost(self, partitions: frozenset[TopicPartition]) -> None:
        """Another member may already own them: commits would be fenced."""


class Consumer(Protocol):
    """One member of a group. Not thread-safe: one thread polls, commits, seeks and closes.

    An offset is always the *next* message: committing 7 says that 0..6 are done.
    """

    @property
    def epoch(self) -> int:
        """The fencing epoch of this membership; grows with every new owner of the group."""
        ...

    def assignment(self) -> frozenset[TopicPartition]: ...

    def poll(self, max_records: int, timeout_s: float) -> list[Record]:
        """Records in offset order per partition; [] after `timeout_s` with nothing to read.

        Starts at the committed offset, or at the earliest where none was committed.
        Raises NewerSchema at a record of a newer build: the consumer stays before it.
        """
        ...

    def position(self, partition: TopicPartition) -> int: ...

    def seek(self, partition: TopicPartition, offset: int) -> None: ...

    def committed(self, partition: TopicPartition) -> int | None: ...

    def commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Durable when it returns. Raises Fenced when the partitions belong to another member."""
        ...

    def close(self) -> None: ...


class EventLog(Protocol):
    """The durable, ordered, partitioned log. Thread-safe."""

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

    def partitions(self, topic: Topic) -> int: ...

    def earliest(self, partition: TopicPartition) -> int: ...

    def end(self, partition: TopicPartition) -> int:
        """The offset that the next record will have."""
        ...

    def close(self) -> None: ...
