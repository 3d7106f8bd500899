"""What accounts used in each month. Every API replica adds what it served."""

from collections.abc import Iterable, Mapping
from typing import Any

from sqlalchemy import Row, select

from core.operations.quotas import Account, Use
from core.store.database import tables
from core.store.database.repository import Repository
from core.store.database.statements import add_up

_table = tables.spending


class SpendingReader(Repository):
    def of_accounts(self, month: str, accounts: Iterable[Account]) -> dict[Account, Use]:
        """Return what those have used that have used anything."""
        by_path = {account.path: account for account in accounts}
        chosen = _table.c.month == month, _table.c.account.in_(by_path)
        rows = self._connection.execute(select(_table).where(*chosen))
        return {by_path[row.account]: _use(row) for row in rows}

    def of_namespace(self, month: str, namespace: str, limit: int) -> dict[Account, Use]:
        """Return a namespace's accounts with what each used, those first that used the most tokens."""
        chosen = _table.c.month == month, _table.c.namespace == namespace
        query = select(_table).where(*chosen).order_by(_table.c.tokens.desc(), _table.c.account).limit(limit)
        rows = self._connection.execute(query)
        return {Account(row.kind, row.namespace, row.name): _use(row) for row in rows}


class Spending(SpendingReader):
    """What was used; it only grows."""

    def add(self, month: str, used: Mapping[Account, Use]) -> None:
        """Add to what accounts have used. Replicas that do so at once wait for each other, and never deadlock."""
        rows: list[dict[str, Any]] = [
            {"month": month, "account": account.path, **account._asdict(), **use._asdict()}
            for account, use in used.items()
        ]
        add_up(self._connection, _table, rows, Use._fields)


def _use(row: Row[Any]) -> Use:
    return Use(*(getattr(row, name) for name in Use._fields))
