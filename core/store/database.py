"""Connections and transactions."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, create_engine, event, insert, select
from sqlalchemy.exc import DatabaseError, IntegrityError, ProgrammingError

from core import tables
from core.errors import ConfigError, StoreUnavailable

_BUSY_TIMEOUT_S = 10
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def to_micros(moment: datetime) -> int:
    return (moment - _EPOCH) // timedelta(microseconds=1)


def from_micros(micros: int) -> datetime:
    return _EPOCH + timedelta(microseconds=micros)


class SqlStore:
    """Thread-safe; each transaction has a connection of its own."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    @contextmanager
    def begin(self) -> Iterator[Connection]:
        """A read-write transaction. Raises StoreUnavailable when the database cannot be used."""
        with self._explained(), self._engine.begin() as connection:
            yield connection

    @contextmanager
    def read(self) -> Iterator[Connection]:
        with self._explained(), self._engine.connect().execution_options(onward_read=True) as connection:
            yield connection

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except (IntegrityError, ProgrammingError):
            raise  # the caller's
        except DatabaseError as error:  # locked, full, gone or corrupt
            raise StoreUnavailable(f"{self._engine.url.database}: the store does not answer: {error.orig}") from error

    def close(self) -> None:
        self._engine.dispose()


def open_sqlite(path: Path) -> SqlStore:
    """Open or create. Raises ConfigError for a file of another schema, StoreUnavailable for one that is no database."""
    engine = create_engine(f"sqlite:///{path}", connect_args={"timeout": _BUSY_TIMEOUT_S, "check_same_thread": False})
    event.listen(engine, "connect", _configure_sqlite)
    event.listen(engine, "begin", _begin_sqlite)
    store = SqlStore(engine)
    try:
        tables.metadata.create_all(engine)
    except DatabaseError as error:
        raise StoreUnavailable(f"{path}: the store cannot be opened: {error.orig}") from error
    _check_schema(store, path)
    return store


def _configure_sqlite(connection: Any, _record: Any) -> None:
    connection.isolation_level = None  # transactions are begun below, not by the driver
    cursor = connection.cursor()
    for pragma in ("journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON"):
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()


def _begin_sqlite(connection: Connection) -> None:
    """Writers take the lock at once: a transaction that reads first and writes later could not wait for it."""
    reading = connection.get_execution_options().get("onward_read", False)
    connection.exec_driver_sql("BEGIN" if reading else "BEGIN IMMEDIATE")


def _check_schema(store: SqlStore, path: Path) -> None:
    wanted = str(tables.SCHEMA_VERSION)
    query = select(tables.meta.c.value).where(tables.meta.c.key == "schema")
    with store.read() as connection:
        found = connection.execute(query).scalar()
    if found is None:
        try:
            with store.begin() as connection:
                connection.execute(insert(tables.meta).values(key="schema", value=wanted))
        except IntegrityError:
            with store.read() as connection:  # another process created it in the same moment
                found = connection.execute(query).scalar()
    if found not in (None, wanted):
        raise ConfigError(f"{path}: schema {found}, this build needs {wanted}")
