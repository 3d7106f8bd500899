"""Stores to test, each empty and the test's own."""

import atexit
import itertools
import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import psycopg
from services import require_services

from core.settings import PostgresSettings
from core.store import SqlStore, open_postgres, open_sqlite
from core.store.database.migrate import migrate_postgres

KINDS = ("sqlite", "postgres")
_numbers = itertools.count()
_RUN = uuid.uuid4().hex[:8]  # another run, which was killed, may have left some of this process' number


@dataclass(frozen=True)
class Database:
    """A database, either a file or on Postgres (`postgres` is None for a file)."""

    path: Path
    postgres: PostgresSettings | None = None

    def open(self) -> SqlStore:
        return open_sqlite(self.path) if self.postgres is None else open_postgres(self.postgres)


@contextmanager
def database(kind: str, directory: Path) -> Iterator[Database]:
    """Yield a database at this build's schema; skip the test if it needs a server and there is none."""
    path = directory / "store.db"
    if kind == "sqlite":
        yield Database(path)
        return
    with server_database(template=_template()) as settings:
        yield Database(path, settings)


@contextmanager
def server_database(template: str = "template1") -> Iterator[PostgresSettings]:
    """Yield a database of its own, made from `template`; the default one has no tables."""
    settings = _create(template)
    yield settings
    _drop(settings)


def admin(query: str) -> None:
    with psycopg.connect(require_services().postgres, autocommit=True) as connection:
        connection.execute(query.encode())


@cache
def _template() -> str:
    settings = _create("template1")
    atexit.register(_drop, settings)
    migrate_postgres(settings)
    return _name_of(settings)


def _create(template: str) -> PostgresSettings:
    name = f"onward_test_{os.getpid()}_{_RUN}_{next(_numbers)}"
    admin(f"CREATE DATABASE {name} TEMPLATE {template}")
    server = require_services().postgres.rsplit("/", 1)[0]
    return PostgresSettings(url=f"{server}/{name}", pool_size=8)


def _drop(settings: PostgresSettings) -> None:
    admin(f"DROP DATABASE {_name_of(settings)} WITH (FORCE)")


def _name_of(settings: PostgresSettings) -> str:
    return settings.url.rsplit("/", 1)[1]
