"""Leases: one holder at a time, and an epoch that fences out the holder that lost it without noticing."""

from datetime import datetime, timedelta

from sqlalchemy import Connection, insert, select, update
from sqlalchemy.exc import IntegrityError

from core import tables
from core.errors import Fenced
from core.store.database import to_micros


def acquire(connection: Connection, name: str, holder: str, now: datetime, ttl_s: float) -> int | None:
    """The epoch when `holder` has the lease now (anew, again, or still); None while another has it."""
    table = tables.leases
    row = connection.execute(select(table).where(table.c.name == name)).one_or_none()
    expires_at = to_micros(now + timedelta(seconds=ttl_s))
    if row is None:
        try:
            with connection.begin_nested():
                connection.execute(insert(table).values(name=name, holder=holder, epoch=1, expires_at=expires_at))
        except IntegrityError:
            return None  # another was first
        return 1
    if row.holder != holder and row.expires_at > to_micros(now):
        return None
    epoch = int(row.epoch) if row.holder == holder else int(row.epoch) + 1
    taken = connection.execute(
        update(table)
        .where(table.c.name == name, table.c.epoch == row.epoch, table.c.holder == row.holder)
        .values(holder=holder, epoch=epoch, expires_at=expires_at)
    )
    return epoch if taken.rowcount == 1 else None


def fence(connection: Connection, name: str, epoch: int, now: datetime, ttl_s: float) -> None:
    """First in every transaction of the holder: renews the lease and locks its row. Raises Fenced when it is lost."""
    table = tables.leases
    expires_at = to_micros(now + timedelta(seconds=ttl_s))
    held = connection.execute(
        update(table).where(table.c.name == name, table.c.epoch == epoch).values(expires_at=expires_at)
    )
    if held.rowcount != 1:
        raise Fenced(f"the lease {name} is another's: epoch {epoch} is over")


def give_back(connection: Connection, name: str, epoch: int) -> None:
    """The next one need not wait. Of a lease that was lost: nothing happens."""
    table = tables.leases
    connection.execute(
        update(table).where(table.c.name == name, table.c.epoch == epoch).values(holder="", expires_at=0)
    )
