"""Retention: delete from the log what is old, archived, and read by every group that needs it."""

import logging
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta

from core import telemetry
from core.events import Topic
from core.ports import Clock, EventLog, Store, TopicPartition
from core.store.work import View

Floor = Callable[[View, TopicPartition], int | None]
"""The offset up to which somebody needs no more of a partition; None: never has, and waits for nothing of it."""
logger = logging.getLogger(__name__)


class Retention:
    """Deletes old records. `floors`: for each topic, the readers that must have read a record before it is deleted."""

    def __init__(
        self, log: EventLog, store: Store, clock: Clock, keep_s: float, floors: Mapping[Topic, Sequence[Floor]]
    ) -> None:
        self._log, self._store, self._clock = log, store, clock
        self._keep = timedelta(seconds=keep_s)
        self._floors = floors

    def delete(self, source: TopicPartition) -> int:
        """Delete a partition's old records; return how many."""
        earliest = self._log.earliest(source)
        old = self._log.offset_at(source, self._clock.now() - self._keep)
        floor = min(old, self._floor(source, old))
        telemetry.LOG_OVERDUE.labels(topic=source.topic, partition=source.partition).set(
            max(0, old - max(floor, earliest))
        )
        if floor <= earliest:
            return 0
        self._log.delete_before(source, floor)
        deleted = self._log.earliest(source) - earliest
        telemetry.LOG_DELETED.labels(topic=source.topic).inc(deleted)
        logger.info("%s: %d records before offset %d deleted", source, deleted, floor)
        return deleted

    def _floor(self, source: TopicPartition, otherwise: int) -> int:
        with self._store.look() as view:
            floors = [floor(view, source) for floor in self._floors[source.topic]]
        return min((floor for floor in floors if floor is not None), default=otherwise)


def archived(view: View, source: TopicPartition) -> int:
    known = view.archived.reached().get(source)
    return 0 if known is None else known.next_offset


def read_by(group: str) -> Floor:
    """Return the offsets of a group that keeps them in the store."""

    def floor(view: View, source: TopicPartition) -> int:
        return view.offsets.of_group(group).get(source, 0)

    return floor


def learned(versions: int) -> Floor:
    """Return what each of the learner's newest `versions` had read, since it may have to resume from any of them.

    Versions made by `onward propose` are not the learner's own: resuming from them continues at what it has read
    itself."""

    def floor(view: View, source: TopicPartition) -> int:
        newest = [policy for policy, _ in view.policies.newest(versions) if not policy.is_proposed]
        return min((policy.log_offsets.get(str(source), 0) for policy in newest), default=0)

    return floor


def committed_by(log: EventLog, group: str) -> Floor:
    """Return the offsets of a group that commits them to the log.

    A group that has committed nothing starts at the end of the log, and is not waited for."""
    return lambda _, source: log.committed(group, source)
