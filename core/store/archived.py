"""How far each partition of the log is in the archive.

A stretch of a partition is archived in three steps: its end is planned, its files are written, it is finished. Whoever
comes after a crash finds the plan and writes the same stretch, so the same files, again. Each step tells what it builds
upon, and is refused where that is no longer so: of two who archive, one goes on.
"""

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
    """All before `next_offset` is in the archive; what is before `planned_end` may be, in part."""

    next_offset: int
    planned_end: int | None


class ArchiveReader(Repository):
    """How far each partition is archived."""

    def reached(self) -> dict[TopicPartition, Archived]:
        """Of the partitions of which something is archived, or planned."""
        return {
            TopicPartition(row.topic, row.partition): Archived(row.next_offset, row.planned_end)
            for row in self._connection.execute(select(_table))
        }


class Archive(ArchiveReader):
    """Written by the archive alone: it begins, plans and finishes a stretch."""

    def begin(self, source: TopicPartition, start: int) -> None:
        """The archive of a partition of which there is none. Raises Fenced where there is one."""
        row = {"topic": source.topic.value, "partition": source.partition, "next_offset": start, "planned_end": None}
        if not insert_new(self._connection, _table, [row]):
            raise _fenced(source)

    def plan(self, source: TopicPartition, start: int, end: int) -> None:
        """The stretch from `start` to before `end` is next. Raises Fenced where another was planned or finished."""
        self._step(source, (_table.c.next_offset == start, _table.c.planned_end.is_(None)), planned_end=end)

    def finish(self, source: TopicPartition, start: int, end: int) -> None:
        """Its files are all there. Raises Fenced where it was finished already."""
        planned = (_table.c.next_offset == start, _table.c.planned_end == end)
        self._step(source, planned, next_offset=end, planned_end=None)

    def _step(self, source: TopicPartition, expected: Iterable[ColumnElement[bool]], **values: int | None) -> None:
        of_source = (_table.c.topic == source.topic.value, _table.c.partition == source.partition)
        done = self._connection.execute(update(_table).where(*of_source, *expected).values(**values))
        if done.rowcount != 1:
            raise _fenced(source)


def _fenced(source: TopicPartition) -> Fenced:
    return Fenced(f"the archive of {source} has gone on without us: another archives the same log")
