"""The archive's progress in each partition of the log.

A stretch of a partition is archived in three steps: its end is planned, its files are written, and it is finished.
After a crash the next process finds the plan and writes the same stretch, and so the same files, again. Each step names
the state that it builds upon and is refused if that has changed: of two processes that archive, one goes on."""

from collections.abc import Iterable

import msgspec
from sqlalchemy import ColumnElement, select, update

from core.errors import Fenced
from core.events import TopicPartition
from core.store.database import tables
from core.store.database.repository import Repository
from core.store.database.statements import insert_new

_table = tables.archived


class Archived(msgspec.Struct, frozen=True):
    """One partition's state: all before `next_offset` is archived; what lies before `planned_end` may be, in part."""

    next_offset: int
    planned_end: int | None


class ArchiveReader(Repository):
    """The archive's progress in each partition."""

    def reached(self) -> dict[TopicPartition, Archived]:
        """Return the state of each partition that has a stretch archived or planned."""
        return {
            TopicPartition(row.topic, row.partition): Archived(row.next_offset, row.planned_end)
            for row in self._connection.execute(select(_table))
        }


class ArchiveProgress(ArchiveReader):
    """The archive's progress, written by the archive alone: it begins partitions, plans and finishes stretches."""

    def begin(self, source: TopicPartition, start: int) -> None:
        """Start the archive of a partition at `start`. Raises Fenced if there is one already."""
        row = {"topic": source.topic.value, "partition": source.partition, "next_offset": start, "planned_end": None}
        if not insert_new(self._connection, _table, [row]):
            raise _fenced(source)

    def plan(self, source: TopicPartition, start: int, end: int) -> None:
        """Plan the stretch from `start` up to, but without, `end`. Raises Fenced if another was planned or finished."""
        self._step(source, (_table.c.next_offset == start, _table.c.planned_end.is_(None)), planned_end=end)

    def finish(self, source: TopicPartition, start: int, end: int) -> None:
        """Mark a planned stretch, whose files are all written, as archived. Raises Fenced if that was done already."""
        planned = (_table.c.next_offset == start, _table.c.planned_end == end)
        self._step(source, planned, next_offset=end, planned_end=None)

    def _step(self, source: TopicPartition, expected: Iterable[ColumnElement[bool]], **values: int | None) -> None:
        of_source = (_table.c.topic == source.topic.value, _table.c.partition == source.partition)
        done = self._connection.execute(update(_table).where(*of_source, *expected).values(**values))
        if done.rowcount != 1:
            raise _fenced(source)


def _fenced(source: TopicPartition) -> Fenced:
    return Fenced(f"the archive of {source} was moved on by another process, which archives the same log")
