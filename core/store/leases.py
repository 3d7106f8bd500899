"""Leases: one holder at a time, and an epoch that fences out a former holder who has not noticed the loss."""

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
    """The leases, each row written by its holder."""

    def acquire(self, name: str, holder: str, now: datetime, ttl_s: float) -> int | None:
        """Return the epoch under which `holder` has the lease now (anew or still), or None while another has it."""
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
        """Renew the lease and lock its row, as the first statement of each of the holder's transactions.

        Raises Fenced when the lease is lost."""
        table = tables.leases
        expires_at = to_micros(now + timedelta(seconds=ttl_s))
        held = self._connection.execute(
            update(table).where(table.c.name == name, table.c.epoch == epoch).values(expires_at=expires_at)
        )
        if held.rowcount != 1:
            raise Fenced(f"the lease {name} has another holder: epoch {epoch} is over")

    def give_back(self, name: str, epoch: int) -> None:
        """Free the lease, so that the next holder need not wait; do nothing if it was lost."""
        table = tables.leases
        self._connection.execute(
            update(table).where(table.c.name == name, table.c.epoch == epoch).values(holder=_NOBODY, expires_at=0)
        )
