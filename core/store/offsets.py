"""How far a consumer group's effects on the store reach."""

from sqlalchemy import Connection, select
from sqlalchemy.dialects import postgresql, sqlite

from core import tables
from core.errors import Fenced
from core.ports import TopicPartition


def get_offsets(connection: Connection, group: str) -> dict[TopicPartition, int]:
    table = tables.offsets
    rows = connection.execute(select(table).where(table.c.consumer_group == group))
    return {TopicPartition(row.topic, row.partition): row.next_offset for row in rows}


def set_offsets(connection: Connection, group: str, offsets: dict[TopicPartition, int], epoch: int) -> None:
    """In the caller's transaction. Raises Fenced when a later owner of the group wrote before."""
    table = tables.offsets
    insert = postgresql.insert if connection.dialect.name == "postgresql" else sqlite.insert
    for source, next_offset in offsets.items():
        statement = insert(table).values(
            consumer_group=group,
            topic=source.topic,
            partition=source.partition,
            next_offset=next_offset,
            epoch=epoch,
        )
        statement = statement.on_conflict_do_update(
            index_elements=[table.c.consumer_group, table.c.topic, table.c.partition],
            set_={"next_offset": next_offset, "epoch": epoch},
            where=table.c.epoch <= epoch,
        )
        if connection.execute(statement).rowcount != 1:
            raise Fenced(f"group {group} lost {source}")
