"""Stores that are at this build's schema already: a copy of one takes a tenth of what making the tables does."""

import sqlite3
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest.mock import patch

from sqlalchemy import Connection

from core.store import SqlStore, open_sqlite
from core.store.database import schema


def open_ready(path: Path) -> SqlStore:
    """Open the store file, which is made from a copy of an empty one where there is none."""
    if not path.exists():
        path.write_bytes(_empty())
    return open_sqlite(path)


def open_in_memory() -> SqlStore:
    statements = _statements()

    def create(connection: Connection) -> None:
        for statement in statements:
            connection.exec_driver_sql(statement)

    with patch.object(schema, "create", create):
        return open_sqlite(Path(":memory:"))


@cache
def _statements() -> list[str]:
    """Return what makes the tables and the rows of an empty store."""
    with TemporaryDirectory() as directory:
        path = Path(directory) / "store.db"
        path.write_bytes(_empty())
        connection = sqlite3.connect(path)
        statements = list(connection.iterdump())
        connection.close()
    return [each for each in statements if each not in ("BEGIN TRANSACTION;", "COMMIT;")]


@cache
def _empty() -> bytes:
    with TemporaryDirectory() as directory:
        path = Path(directory) / "store.db"
        open_sqlite(path).close()  # its write-ahead log is in it once it is closed
        assert [each.name for each in path.parent.iterdir()] == [path.name]
        return path.read_bytes()
