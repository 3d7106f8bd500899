"""A member of a consumer group whose effects are in the store: which partitions it owns, and how far it has come."""

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from core.errors import Fenced, LogError, Unavailable
from core.events import Topic
from core.ports import EventLog, Record, Store, TopicPartition
from core.store.work import Work

_JOIN_S = 1.0  # while others come or go: only who polls for long enough, and often, joins again
logger = logging.getLogger(__name__)


class Membership:
    """One member of a consumer group.

    The log assigns partitions to this member; it owns them once the store has given it an epoch, and then goes on from
    the store's offsets, whatever the log's own are: only the store's move together with its contents.

    Its methods raise Unavailable, or Fenced where it is a zombie (see `core.store.offsets`): the caller calls `recover`
    and goes on. They raise LogError where the store was not made from this log. Not thread-safe."""

    def __init__(self, log: EventLog, store: Store, group: str, topics: Sequence[Topic]) -> None:
        self._log, self._store, self._group = log, store, group
        self._assigned: set[TopicPartition] = set()  # and not owned yet
        self._epochs: dict[TopicPartition, int] = {}
        self._offsets: dict[TopicPartition, int] = {}
        self._consumer = log.consumer(group, topics, listener=self)

    @property
    def offsets(self) -> Mapping[TopicPartition, int]:
        """The store's next offset of each partition that this member owns."""
        return self._offsets

    @property
    def epochs(self) -> Mapping[TopicPartition, int]:
        """The epoch of each partition that this member owns; another one if it lost and regained it."""
        return self._epochs

    def behind(self) -> dict[TopicPartition, int]:
        """Return how many records of each owned partition are in the log and not yet in the store."""
        return {source: self._log.end(source) - offset for source, offset in self._offsets.items()}

    def poll(self, max_records: int, timeout_s: float) -> list[Record]:
        """Return records of the partitions that it owns; which those are may change with this call."""
        if self._assigned:
            try:
                self._take_over(frozenset(self._assigned))
            except (Unavailable, Fenced):
                self._consumer.poll(max_records, max(timeout_s, _JOIN_S))  # `recover` goes back
                raise
        records = self._consumer.poll(max_records, timeout_s)
        return [record for record in records if record.source in self._offsets]

    @contextmanager
    def writing(self, offsets: Mapping[TopicPartition, int]) -> Iterator[Work]:
        """Open the unit of work that does all that comes before `offsets`.

        Nobody else owns these partitions, or becomes their owner, meanwhile."""
        with self._store.work() as work:
            work.offsets.advance(self._group, offsets, self._epochs)
            yield work
        self._offsets |= offsets

    def commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Commit offsets to the log, for those who watch the group; a restart does not depend on it.

        While the log is unavailable, or members come or go, the next commit does it."""
        try:
            self._consumer.commit(offsets)
        except Unavailable as error:
            logger.info("group %s: the log was not told how far it has come: %s", self._group, error)

    def recover(self, error: Unavailable | Fenced) -> None:
        """Read again what was read and is not in the store, if this member is still the owner."""
        if isinstance(error, Fenced):
            self._assigned |= self._offsets.keys()
            self._forget(frozenset(self._offsets))
        for source, offset in self._offsets.items():
            self._consumer.seek(source, offset)

    def close(self) -> None:
        self._consumer.close()

    # ------------------------------------------------------------------------------------------ told by the log

    def on_assigned(self, partitions: frozenset[TopicPartition]) -> None:
        self._assigned |= partitions
        try:
            self._take_over(partitions)
        except (Unavailable, Fenced) as error:
            logger.warning("group %s: not the owner yet: %s", self._group, error)  # `poll` tries again

    def on_revoked(self, partitions: frozenset[TopicPartition]) -> None:
        """Forget partitions. Nothing is pending between two polls: what was read is in the store, or is read again."""
        self.on_lost(partitions)

    def on_lost(self, partitions: frozenset[TopicPartition]) -> None:
        self._assigned -= partitions
        self._forget(partitions)

    def _take_over(self, partitions: frozenset[TopicPartition]) -> None:
        bounds = {source: (self._log.earliest(source), self._log.end(source)) for source in partitions}
        with self._store.work() as work:
            taken = work.offsets.take_over(self._group, partitions)
            starts = {source: _start(source, offset, *bounds[source]) for source, (_, offset) in taken.items()}
            self._consumer.commit(starts)  # while the rows are locked: Fenced for a zombie, and all is as it was
        for source, offset in starts.items():
            self._consumer.seek(source, offset)
        self._epochs |= {source: epoch for source, (epoch, _) in taken.items()}
        self._offsets |= starts
        self._assigned -= partitions

    def _forget(self, partitions: frozenset[TopicPartition]) -> None:
        for source in partitions:
            self._offsets.pop(source, None)
            self._epochs.pop(source, None)


def _start(source: TopicPartition, offset: int | None, earliest: int, end: int) -> int:
    if offset is None:
        return earliest
    if offset > end:
        raise LogError(
            f"the store has read {source} up to offset {offset}, but the log ends at {end}: "
            "the store was made from another log"
        )
    if offset < earliest:
        raise LogError(
            f"the store has read {source} up to offset {offset}, but the log begins at {earliest}: what lay between "
            "is gone, and was never read"
        )
    return offset
