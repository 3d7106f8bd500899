"""The sources of a stage's records, and the handling of those that it cannot take."""

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Final, Protocol

from core.errors import Fenced, Unavailable
from core.events import Topic
from core.ports import Clock, EventLog, LogReader, Record, Store, TopicPartition
from core.records.handling import Culprits
from core.records.membership import Membership
from core.store.work import Work

_LARGE_BATCH: Final = 256
Handle = Callable[[Sequence[Record]], object]


class RecordSource(Protocol):
    """Records of some topics. Its methods raise Unavailable, Fenced, NewerSchema and LogError."""

    def poll(self, max_records: int, timeout_s: float) -> Sequence[Record]: ...

    def take(self, records: Sequence[Record], handle: Handle) -> None:
        """Pass all of `records` to `handle`, or set them aside."""
        ...

    def recover(self, error: Unavailable | Fenced) -> None:
        """Let the records that were polled and not taken come again."""
        ...

    def close(self) -> None: ...


class SharedRecords:
    """Records of partitions that the members of a group share.

    The effects of a batch and the offsets after it are one transaction in the store: `handle` writes in `writing`."""

    def __init__(
        self,
        group: str,
        topics: Sequence[Topic],
        log: EventLog,
        store: Store,
        clock: Clock,
        record_attempts: int,
        linger_s: float = 0.0,
    ) -> None:
        """Join the group when first polled.

        `linger_s` is the least time between small batches, as a transaction costs the same for one record as for
        twenty."""
        self.member = Membership(log, store, group, topics)
        self._culprits = Culprits(group, log, store, clock, record_attempts)
        self._linger_s, self._next_s = linger_s, 0.0

    def poll(self, max_records: int, timeout_s: float) -> list[Record]:
        pause_s = min(self._next_s - time.monotonic(), timeout_s)
        if pause_s > 0:
            time.sleep(pause_s)
        records = self.member.poll(max_records, timeout_s)
        if records and len(records) < min(_LARGE_BATCH, max_records):
            self._next_s = time.monotonic() + self._linger_s
        return records

    def take(self, records: Sequence[Record], handle: Handle) -> None:
        if records:
            self._culprits.find(records, handle, self.member.writing)

    def writing(self, records: Sequence[Record]) -> AbstractContextManager[Work]:
        """Open the unit of work in which `records` are handled."""
        return self.member.writing(reach_of(records))

    def recover(self, error: Unavailable | Fenced) -> None:
        self.member.recover(error)

    def close(self) -> None:
        self.member.close()


class PlainRecords:
    """All partitions, read by a stage that keeps its positions itself and sets nothing aside."""

    def __init__(self, reader: LogReader) -> None:
        self.reader = reader

    def poll(self, max_records: int, timeout_s: float) -> Sequence[Record]:
        return self.reader.poll(max_records, timeout_s)

    def take(self, records: Sequence[Record], handle: Handle) -> None:
        if records:
            handle(records)

    def recover(self, error: Unavailable | Fenced) -> None:
        """Do nothing: the reader stands where it stood."""

    def close(self) -> None:
        self.reader.close()


class OwnRecords(PlainRecords):
    """All partitions, read by a stage that keeps its positions itself, one record at a time.

    A record that cannot be taken is set aside, and polled records wait here while something is unavailable."""

    def __init__(self, reader: LogReader, culprits: Culprits) -> None:
        super().__init__(reader)
        self.culprits = culprits
        self._waiting: deque[Record] = deque()

    def poll(self, max_records: int, timeout_s: float) -> Sequence[Record]:
        return [] if self._waiting else super().poll(max_records, timeout_s)

    def take(self, records: Sequence[Record], handle: Handle) -> None:
        self._waiting += records
        while self._waiting:
            record = self._waiting[0]
            self.culprits.tried(record, partial(handle, [record]))
            self._waiting.popleft()


def reach_of(records: Sequence[Record]) -> Mapping[TopicPartition, int]:
    """Return the offset after the last of the records in each partition."""
    return {record.source: record.offset + 1 for record in records}
