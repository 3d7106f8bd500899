"""How far each partition of the log is in the archive.

A stretch of a partition is archived in three steps: its end is planned, its files are written, it is finished. Whoever
comes after a crash finds the plan and writes the same stretch, so the same files, again. Each step tells what it builds
upon, and is refused where that is no longer so: of two who archive, one goes on.
"""

from collections.abc import Iterable

import msgspec
from sqlalchemy import ColumnElement, Connection, select, update

from core.errors import Fenced
from core.ports import TopicPartition
from core.store.database import tables
from core.store.database.statements import insert_new

_table = tables.archived


class Archived(msgspec.Struct, frozen=True):
    """All before `next_offset` is in the archive; what is before `planned_end` may be, in part."""

    next_offset: int
    planned_end: int | None


def get_archived(connection: Connection) -> dict[TopicPartition, Archived]:
    """Of the partitions of which something is archived, or planned."""
    return {
        TopicPartition(row.topic, row.partition): Archived(row.next_offset, row.planned_end)
        for row in connection.execute(select(_table))
    }


def begin(connection: Connection, source: TopicPartition, start: int) -> None:
    """The archive of a partition of which there is none. Raises Fenced where there is one."""
    row = {"topic": source.topic.value, "partition": source.partition, "next_offset": start, "planned_end": None}
    if not insert_new(connection, _table, [row]):
        raise _fenced(source)


def plan(connection: Connection, source: TopicPartition, start: int, end: int) -> None:
    """The stretch from `start` to before `end` is next. Raises Fenced where another was planned or finished."""
    _step(connection, source, (_table.c.next_offset == start, _table.c.planned_end.is_(None)), planned_end=end)


def finish(connection: Connection, source: TopicPartition, start: int, end: int) -> None:
    """Its files are all there. Raises Fenced where it was finished already."""
    planned = (_table.c.next_offset == start, _table.c.planned_end == end)
    _step(connection, source, planned, next_offset=end, planned_end=None)


def _step(
    connection: Connection, source: TopicPartition, expected: Iterable[ColumnElement[bool]], **values: int | None
) -> None:
    of_source = (_table.c.topic == source.topic.value, _table.c.partition == source.partition)
    done = connection.execute(update(_table).where(*of_source, *expected).values(**values))
    if done.rowcount != 1:
        raise _fenced(source)


def _fenced(source: TopicPartition) -> Fenced:
    return Fenced(f"the archive of {source} has gone on without us: another archives the same log")
