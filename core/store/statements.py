"""Writing many rows, in the dialect of either database.

Rows go in order of their primary keys: two transactions with rows in common then wait for, and never deadlock, each
other.
"""

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from sqlalchemy import Connection, Insert, Table
from sqlalchemy.dialects import postgresql, sqlite

Row = Mapping[str, Any]
_COUNTED = {"preserve_rowcount": True}


def insert_new(connection: Connection, table: Table, rows: Sequence[Row]) -> int:
    """How many were new; a row whose primary key is there, or came before in `rows`, stays as it is."""
    if not rows:
        return 0
    statement = _insert_new(connection.dialect.name, table)
    return connection.execute(statement, _ordered(table, rows), execution_options=_COUNTED).rowcount


def upsert(connection: Connection, table: Table, rows: Sequence[Row]) -> None:
    """All columns of each."""
    if rows:
        connection.execute(_upsert(connection.dialect.name, table), _ordered(table, rows))


@cache
def _insert_new(dialect: str, table: Table) -> Insert:
    return _insert(dialect, table).on_conflict_do_nothing(index_elements=list(table.primary_key))


@cache
def _upsert(dialect: str, table: Table) -> Insert:
    statement = _insert(dialect, table)
    changed = {column.name: statement.excluded[column.name] for column in table.c if not column.primary_key}
    return statement.on_conflict_do_update(index_elements=list(table.primary_key), set_=changed)


def _insert(dialect: str, table: Table) -> "postgresql.Insert | sqlite.Insert":
    return (postgresql.insert if dialect == "postgresql" else sqlite.insert)(table)


def _ordered(table: Table, rows: Sequence[Row]) -> list[dict[str, Any]]:
    key = [column.name for column in table.primary_key]
    return sorted(map(dict, rows), key=lambda row: tuple(row[name] for name in key))
