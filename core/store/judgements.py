"""Turns that a judge spoke of, and all that was said of them."""

from collections.abc import Iterator
from itertools import groupby

import msgspec
from sqlalchemy import Connection, select

from core.events import Outcome
from core.store.database import tables

_decode = msgspec.msgpack.Decoder(Outcome).decode


def judged_turns(connection: Connection, name: str) -> Iterator[list[Outcome]]:
    """Of each turn that has an outcome of that name: all its outcomes, one turn after the other."""
    table = tables.outcomes
    judged = select(table.c.inference_id).where(table.c.name == name, table.c.inference_id.is_not(None))
    query = (
        select(table.c.inference_id, table.c.record)
        .where(table.c.inference_id.in_(judged))
        .order_by(table.c.inference_id)
        .execution_options(yield_per=1000)
    )
    for _, rows in groupby(connection.execute(query), key=lambda row: row.inference_id):
        yield [_decode(row.record) for row in rows]
