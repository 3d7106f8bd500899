"""Leases: one holder at a time, and an epoch that fences out the holder that lost it without noticing."""

from datetime import datetime, timedelta

from sqlalchemy import case, or_, update

from core.clock import to_micros
from core.errors import Fenced
from core.store.database import tables
from core.store.database.repository import Repository
from core.store.database.silent import end_silent_owners
from core.store.database.statements import insert_new

_NOBODY = ""


class Leases(Repository):
    """Who may do what now: each row is written by its holder."""

    def acquire(self, name: str, holder: str, now: datetime, ttl_s: float) -> int | None:
        """The epoch when `holder` has the lease now (anew, again, or still); None while another has it."""
        table = tables.leases
        free = {"name": name, "holder": _NOBODY, "epoch": 0, "expires_at": 0}
        end_silent_owners(self._connection, table)
        insert_new(self._connection, table, [free])
        ours = table.c.holder == holder
        taken = self._connection.execute(
            update(table)
            .where(table.c.name == name, or_(ours, table.c.expires_at <= to_micros(now)))
            .values(
                holder=holder,
                epoch=table.c.epoch + case((ours, 0), else_=1),
                expires_at=to_micros(now + timedelta(seconds=ttl_s)),
            )
            .returning(table.c.epoch)
        )
        return taken.scalar()

    def fence(self, name: str, epoch: int, now: datetime, ttl_s: float) -> None:
        """First in every transaction of the holder: renews the lease and locks its row. Raises Fenced when it is
        lost."""
        table = tables.leases
        expires_at = to_micros(now + timedelta(seconds=ttl_s))
        held = self._connection.execute(
            update(table).where(table.c.name == name, table.c.epoch == epoch).values(expires_at=expires_at)
        )
        if held.rowcount != 1:
            raise Fenced(f"the lease {name} is another's: epoch {epoch} is over")

    def give_back(self, name: str, epoch: int) -> None:
        """The next one need not wait. Of a lease that was lost: nothing happens."""
        table = tables.leases
        self._connection.execute(
            update(table).where(table.c.name == name, table.c.epoch == epoch).values(holder=_NOBODY, expires_at=0)
        )
