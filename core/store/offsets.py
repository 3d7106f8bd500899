"""How far a consumer group's effects on the store reach."""

from collections.abc import Mapping
from functools import cache

from sqlalchemy import Connection, Insert, bindparam, select
from sqlalchemy.dialects import postgresql, sqlite

from core import tables
from core.errors import Fenced
from core.ports import TopicPartition

_table = tables.offsets
_LATER_OWNERS = select(_table.c.topic, _table.c.partition).where(
    _table.c.consumer_group == bindparam("group"), _table.c.epoch > bindparam("epoch")
)


def get_offsets(connection: Connection, group: str) -> dict[TopicPartition, int]:
    rows = connection.execute(select(_table).where(_table.c.consumer_group == group))
    return {TopicPartition(row.topic, row.partition): row.next_offset for row in rows}


def set_offsets(connection: Connection, group: str, offsets: Mapping[TopicPartition, int], epoch: int) -> None:
    """In the caller's transaction. Raises Fenced when a later owner of the group wrote before."""
    rows = [
        {
            "consumer_group": group,
            "topic": source.topic,
            "partition": source.partition,
            "next_offset": next_offset,
            "epoch": epoch,
        }
        for source, next_offset in offsets.items()
    ]
    if not rows:
        return
    connection.execute(_upsert(connection.dialect.name), rows)  # takes the rows' locks: nobody passes us from here on
    for row in connection.execute(_LATER_OWNERS, {"group": group, "epoch": epoch}):
        if (source := TopicPartition(row.topic, row.partition)) in offsets:
            raise Fenced(f"group {group} lost {source}")


@cache
def _upsert(dialect: str) -> Insert:
    """Leaves a later owner's row as it is."""
    insert = postgresql.insert if dialect == "postgresql" else sqlite.insert
    statement = insert(_table)
    return statement.on_conflict_do_update(
        index_elements=[_table.c.consumer_group, _table.c.topic, _table.c.partition],
        set_={"next_offset": statement.excluded.next_offset, "epoch": statement.excluded.epoch},
        where=_table.c.epoch <= statement.excluded.epoch,
    )
