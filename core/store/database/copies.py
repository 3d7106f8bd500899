"""The rows of the whole store, table by table, for backups: read in one view, and written into an empty store."""

from collections.abc import Iterator, Sequence
from typing import Any, Final

from sqlalchemy import Connection, Row, Table, func, insert, select, text, tuple_

from core.errors import Conflict
from core.store.database import tables
from core.store.database.locks import Lock, hold

SCHEMA: Final = tables.REVISION
"""The revision of the schema that rows are of."""
_ROWS_AT_ONCE: Final = 256
_OF_PROCESSES: Final = frozenset((tables.leases, tables.replicas, tables.replica_targets))
"""Tables of what runs at the moment: of processes that a restored store knows nothing of."""
_COPIED: Final = tuple(t for t in tables.metadata.sorted_tables if t is not tables.meta and t not in _OF_PROCESSES)


class Snapshot:
    """All rows of a store, as they are for one connection's transaction."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def count(self) -> int:
        return count_rows(self._connection)

    def rows(self) -> Iterator[tuple[str, list[Row[Any]]]]:
        return read_rows(self._connection)


def freeze(connection: Connection) -> None:
    """Let nobody allocate a version, or write a release, until the end of the transaction."""
    hold(connection, Lock.VERSIONS)
    hold(connection, Lock.RELEASES)


def count_rows(connection: Connection) -> int:
    """Count the rows that `read_rows` would return."""
    return sum(connection.execute(select(func.count()).select_from(table)).scalar_one() for table in _COPIED)


def read_rows(connection: Connection) -> Iterator[tuple[str, list[Row[Any]]]]:
    """Yield (table name, some of its rows, with all columns), until all tables were read.

    Each statement reads a bounded number of rows, so that none is ended by a server for taking long."""
    for table in _COPIED:
        key = tuple_(*table.primary_key)
        query = select(table).order_by(*table.primary_key).limit(_ROWS_AT_ONCE)
        rows = connection.execute(query).all()
        while rows:
            yield str(table.name), list(rows)
            last = tuple(rows[-1]._mapping[column.name] for column in table.primary_key)
            rows = connection.execute(query.where(key > last)).all()


def require_empty(connection: Connection) -> None:
    """Raise Conflict naming the first table that has rows."""
    for table in _COPIED:
        if connection.execute(select(*table.primary_key).limit(1)).first() is not None:
            raise Conflict(f"the store is not empty: its table {table.name} has rows")


def write_rows(connection: Connection, table: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """Insert rows as `read_rows` returned them."""
    into = tables.metadata.tables[table]
    connection.execute(insert(into), [dict(zip(columns, row, strict=True)) for row in rows])


def go_on_counting(connection: Connection) -> None:
    """Let the numbers that the database gives go on after those of the rows that were written with theirs.

    On SQLite they do so by themselves."""
    if connection.dialect.name != "postgresql":
        return
    for table in _COPIED:
        for column in table.primary_key:
            if _is_counted(table, column.name):
                connection.execute(
                    text(
                        f"SELECT setval(pg_get_serial_sequence('{table.name}', '{column.name}'), "
                        f"coalesce((SELECT max({column.name}) FROM {table.name}), 0) + 1, false)"
                    )
                )


def _is_counted(table: Table, column: str) -> bool:
    return table.autoincrement_column is not None and table.autoincrement_column.name == column


COLUMNS: Final = {str(t.name): tuple(str(column.name) for column in t.columns) for t in _COPIED}
"""The columns of each table, in the order of the rows' values."""
