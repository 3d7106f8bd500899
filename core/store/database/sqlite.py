"""The store in one file, for mode `embedded`."""

import sqlite3
import time
from pathlib import Path
from typing import Any

from sqlalchemy import URL, Connection, create_engine, event

from core.store.database import schema, tables
from core.store.database.connections import SqlStore

_BUSY_TIMEOUT_S = 10
_BUSY_POLL_S = 0.01


def open_sqlite(path: Path) -> SqlStore:
    """Open the file, create it, or upgrade it to this build's schema.

    Raises ConfigError for a file of a newer build, or of a former one that is upgraded no more, and StoreUnavailable
    for one that is no database."""
    url = URL.create("sqlite", database=str(path))  # not as text: a directory may be called anything
    engine = create_engine(url, connect_args={"timeout": _BUSY_TIMEOUT_S, "check_same_thread": False})
    event.listen(engine, "connect", _configure)
    event.listen(engine, "begin", _begin)
    store = SqlStore(engine, str(path), for_reads={"onward_read": True})
    with store.read() as connection:
        found = schema.found_revision(connection)
    if found != tables.REVISION:
        with store.begin() as connection:  # nobody else writes until it is done, whole or not at all
            _bring_up(connection, path)
    return store


def _bring_up(connection: Connection, path: Path) -> None:
    found = schema.found_revision(connection)  # another process may have been first
    if found is None:
        schema.create(connection)
    else:
        schema.upgrade(connection, found, str(path))


def _configure(connection: Any, _record: Any) -> None:
    connection.isolation_level = None  # transactions are begun below, not by the driver
    cursor = connection.cursor()
    _write_ahead(cursor)
    for pragma in ("synchronous=FULL", "foreign_keys=ON"):
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()


def _write_ahead(cursor: sqlite3.Cursor) -> None:
    """Give the file a write-ahead log, for good; where several processes do so at once, SQLite itself does not wait.

    Raises sqlite3.OperationalError when the file stays locked."""
    give_up_at = time.monotonic() + _BUSY_TIMEOUT_S
    while True:
        try:
            cursor.execute("PRAGMA journal_mode=WAL")
            return
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_BUSY or time.monotonic() > give_up_at:
                raise
            time.sleep(_BUSY_POLL_S)


def _begin(connection: Connection) -> None:
    """Begin a transaction; one that writes takes the lock at once.

    A transaction that first reads and later writes could not wait for the lock."""
    reading = connection.get_execution_options().get("onward_read", False)
    connection.exec_driver_sql("BEGIN" if reading else "BEGIN IMMEDIATE")
