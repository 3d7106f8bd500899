"""Statements over many rows at once, for SQLite and Postgres.

Rows are written in order of their primary keys: two transactions with rows in common then wait for each other and
never deadlock. Postgres receives many values as one array, so that the statement is the same for one row and for a
thousand."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cache
from typing import Any, TypeVar

from sqlalchemy import (
    Boolean,
    Cast,
    ColumnElement,
    Connection,
    Insert,
    String,
    Table,
    Text,
    any_,
    bindparam,
    cast,
    func,
    select,
)
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.functions import FunctionElement

Row = Mapping[str, Any]
T = TypeVar("T")
_COUNTED = {"preserve_rowcount": True}


class Among(FunctionElement[bool]):
    """The condition that a column's value is one of the parameter `values`."""

    type = Boolean()
    inherit_cache = True

    def self_group(self, against: object = None) -> "Among":
        """Return itself, as a condition.

        SQLAlchemy would otherwise ask SQLite, where a boolean is a number, whether it is 1, and no index would be
        used."""
        return self


@compiles(Among)
def _in_list(among: Among, compiler: Any, **options: Any) -> str:
    (column,) = among.clauses
    return str(compiler.process(column.in_(bindparam("values", expanding=True)), **options))


@compiles(Among, "postgresql")
def _in_array(among: Among, compiler: Any, **options: Any) -> str:
    (column,) = among.clauses
    return str(compiler.process(column == any_(_array(column, "values")), **options))


def within(most_bytes: int, sizes: Iterable[tuple[T, int]]) -> list[T]:
    """Return the first names of records, each with its size, that have so many bytes together.

    The first is there in any case."""
    found: list[T] = []
    taken = 0
    for name, size in sizes:
        taken += size
        if found and taken > most_bytes:
            break
        found.append(name)
    return found


def insert_new(connection: Connection, table: Table, rows: Sequence[Row]) -> int:
    """Insert the rows whose primary keys are new, and return how many those were.

    A row whose key is in the table, or came earlier in `rows`, leaves the first one as it is."""
    if not rows:
        return 0
    statement = _insert_new(connection.dialect.name, table)
    values = _values(connection.dialect.name, table, rows)
    return connection.execute(statement, values, execution_options=_COUNTED).rowcount


def upsert(connection: Connection, table: Table, rows: Sequence[Row]) -> None:
    """Insert rows, or overwrite all columns of those whose primary keys exist; each key may come once."""
    if rows:
        connection.execute(_upsert(connection.dialect.name, table), _values(connection.dialect.name, table, rows))


def add_up(connection: Connection, table: Table, rows: Sequence[Row], sums: Collection[str]) -> None:
    """Insert rows; where a primary key exists, add to its row's `sums` what the new one has. Each key may come once."""
    if rows:
        statement = _add_up(connection.dialect.name, table, tuple(sums))
        connection.execute(statement, _values(connection.dialect.name, table, rows))


@cache
def _add_up(dialect: str, table: Table, sums: tuple[str, ...]) -> Insert:
    statement = _insert(dialect, table)
    changed = {name: table.c[name] + statement.excluded[name] for name in sums}
    return statement.on_conflict_do_update(index_elements=list(table.primary_key), set_=changed)


@cache
def _insert_new(dialect: str, table: Table) -> Insert:
    return _insert(dialect, table).on_conflict_do_nothing(index_elements=list(table.primary_key))


@cache
def _upsert(dialect: str, table: Table) -> Insert:
    statement = _insert(dialect, table)
    changed = {column.name: statement.excluded[column.name] for column in table.c if not column.primary_key}
    return statement.on_conflict_do_update(index_elements=list(table.primary_key), set_=changed)


def _insert(dialect: str, table: Table) -> "postgresql.Insert | sqlite.Insert":
    if dialect != "postgresql":
        return sqlite.insert(table)
    names = [column.name for column in table.c]
    arrays = [_array(column, column.name) for column in table.c]
    rows = func.unnest(*arrays).table_valued(*names).render_derived()
    return postgresql.insert(table).from_select(names, select(*rows.c))


def _array(column: ColumnElement[Any], name: str) -> Cast[Any]:
    kind = Text() if isinstance(column.type, String) else column.type  # a cast takes no collation
    return cast(bindparam(name), postgresql.ARRAY(kind))


def _values(dialect: str, table: Table, rows: Sequence[Row]) -> Any:
    key = [column.name for column in table.primary_key]
    ordered = sorted(rows, key=lambda row: tuple(row[name] for name in key))
    if dialect != "postgresql":
        return list(map(dict, ordered))
    return {column.name: [row[column.name] for row in ordered] for column in table.c}
