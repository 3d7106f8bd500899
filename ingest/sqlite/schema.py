"""The database file of the embedded log: its tables, its connections and what its errors mean."""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from core.errors import ConfigError, LogError, LogUnavailable

SCHEMA_VERSION = 1
_CACHED_STATEMENTS = 512
_PAGE_BYTES = 8192  # of a new file: three records of the common size (2.5 kB) in a page, where 4096 would hold one

# `sequence` is the order of appending over all topics. It and `record_offset` rise together within a partition, so
# partitions merged by it are read alike by everyone. The latest record is never deleted: both counters go on from it.
_SCHEMA = """
CREATE TABLE IF NOT EXISTS meta (key TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS records (
    sequence INTEGER PRIMARY KEY,
    topic TEXT NOT NULL,
    partition INTEGER NOT NULL,
    record_offset INTEGER NOT NULL,
    appended_at INTEGER NOT NULL,  -- UTC microseconds
    raw BLOB NOT NULL
);
CREATE UNIQUE INDEX IF NOT EXISTS records_by_offset ON records (topic, partition, record_offset);
CREATE TABLE IF NOT EXISTS groups (consumer_group TEXT PRIMARY KEY, epoch INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS offsets (
    consumer_group TEXT NOT NULL,
    topic TEXT NOT NULL,
    partition INTEGER NOT NULL,
    next_offset INTEGER NOT NULL,
    PRIMARY KEY (consumer_group, topic, partition)
) WITHOUT ROWID;
"""


def connect(path: Path, busy_timeout_s: float) -> sqlite3.Connection:
    """Open a connection in WAL mode whose commits are on the disk when they return.

    Transactions are begun explicitly. One thread at a time uses it, not always the one that made it."""
    connection = sqlite3.connect(
        path,
        timeout=busy_timeout_s,
        isolation_level=None,
        check_same_thread=False,
        cached_statements=_CACHED_STATEMENTS,
    )
    connection.execute(f"PRAGMA page_size={_PAGE_BYTES}")  # does nothing to a file that is there
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA synchronous=FULL")
    return connection


def create(connection: sqlite3.Connection, path: Path, partitions: int) -> None:
    """Make the tables, or check existing ones. Raises ConfigError when they were made otherwise."""
    if connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'meta'").fetchone() is None:
        with writing(connection, path):  # whole or not at all; another process may be doing the same
            for statement in _SCHEMA.split(";\n")[:-1]:
                connection.execute(statement)
            made = {"schema": SCHEMA_VERSION, "partitions": partitions}
            connection.executemany("INSERT OR IGNORE INTO meta VALUES (?, ?)", made.items())
    found = dict(connection.execute("SELECT key, value FROM meta"))
    if found["schema"] != SCHEMA_VERSION:
        raise ConfigError(f"{path}: schema {found['schema']}; this build needs {SCHEMA_VERSION}")
    if found["partitions"] != partitions:
        raise ConfigError(f"ingest.partitions: {path} was made with {found['partitions']}, not {partitions}")


@contextmanager
def explained(path: Path) -> Iterator[None]:
    """Translate SQLite's errors, each naming the file: LogUnavailable where it may pass, LogError for a broken file."""
    try:
        yield
    except sqlite3.ProgrammingError:
        raise  # ours: a closed connection, a wrong number of parameters
    except sqlite3.OperationalError as error:
        raise LogUnavailable(f"{path}: {error}") from error
    except sqlite3.DatabaseError as error:
        raise LogError(f"{path}: the log's file is corrupt or no log ({error})") from error


@contextmanager
def writing(connection: sqlite3.Connection, path: Path) -> Iterator[None]:
    """Begin a transaction that holds the write lock from its beginning.

    When it fails, nothing of it happened, unless the LogUnavailable raised says that this is unknown."""
    with explained(path):
        connection.execute("BEGIN IMMEDIATE")
        try:
            yield
            _commit(connection, path)
        finally:
            if connection.in_transaction:  # no commit, and no full disk either, which rolls back by itself
                connection.execute("ROLLBACK")


def _commit(connection: sqlite3.Connection, path: Path) -> None:
    try:
        connection.execute("COMMIT")
    except sqlite3.OperationalError as error:
        if error.sqlite_errorname == "SQLITE_IOERR_FSYNC":  # all is written, nobody knows whether it will stay
            raise LogUnavailable(f"{path}: {error}; whether the batch was appended is unknown") from error
        raise
