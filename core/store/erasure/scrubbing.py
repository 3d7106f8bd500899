"""Scrubbing: after rows were overwritten or deleted, no byte of what they held is left in the database's files.

SQLite keeps old bytes in free pages and in its write-ahead log, and Postgres in dead rows; both files are written anew.
That takes as long as copying the tables, and for so long nobody else writes to them. Postgres' write-ahead log keeps
what was written until the server recycles it, and so do backups and replicas of the server: they are the operator's."""

import math
import sqlite3
from typing import Final

from sqlalchemy import Connection, Engine

from core.errors import StoreUnavailable
from core.store.database import tables

_HELD_WORDS: Final = (
    tables.turns,
    tables.outcomes,
    tables.rewards,
    tables.ledger_turns,
    tables.ledger_outcomes,
    tables.dead_letters,
    tables.session_keys,
    tables.consents,
    tables.exclusions,
    tables.erasures,
    tables.spending,
)


def scrub_engine(engine: Engine, name: str) -> None:
    """Write the database's files anew. Raises StoreUnavailable while somebody else holds them: try again then."""
    if engine.dialect.name == "sqlite":
        raw = engine.raw_connection()
        try:
            assert isinstance(raw.driver_connection, sqlite3.Connection), "SQLite has one driver here"
            scrub_file(raw.driver_connection, name)
        except sqlite3.OperationalError as error:
            raise StoreUnavailable(f"{name}: the file cannot be written anew now: {error}") from error
        finally:
            raw.close()
        return
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        _vacuum(connection)


def scrub_file(connection: sqlite3.Connection, name: str) -> None:
    """Write an SQLite file anew, and empty its write-ahead log. Raises sqlite3.OperationalError while it is in use."""
    connection.execute("VACUUM")
    busy = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]
    if busy:
        raise sqlite3.OperationalError(f"{name}: somebody reads it, and its write-ahead log cannot be emptied")


def _vacuum(connection: Connection) -> None:
    connection.exec_driver_sql("SET statement_timeout = 0")
    connection.connection.driver_connection.patience_s = math.inf  # type: ignore[union-attr]  # as long as it takes
    try:
        for table in _HELD_WORDS:
            connection.exec_driver_sql(f"VACUUM (FULL) {table.name}")
    finally:
        connection.exec_driver_sql("RESET statement_timeout")
