"""The work of `onward migrate`: bringing the database to this build's schema."""

from contextlib import suppress

import psycopg
from sqlalchemy import Connection, NullPool, create_engine, func, select
from sqlalchemy.exc import DBAPIError

from core.errors import StoreUnavailable
from core.settings import PostgresSettings
from core.store.database import schema, tables
from core.store.database.connections import explained
from core.store.database.locks import OURS, Lock
from core.store.database.postgres import DRIVER, conninfo, place_of, to_ms

_LOCK_TIMEOUT_S = 5.0  # while a migration waits for a table's lock, everybody behind it waits, too


def migrate_postgres(settings: PostgresSettings) -> tuple[str | None, str]:
    """Migrate the database, and return the revisions before (None if it was empty) and after.

    Other processes may go on meanwhile, as each revision says. A migration that was interrupted goes on where it was.
    Raises ConfigError when `postgres.url` is no such URL or the schema is a newer build's, or a former one that is
    upgraded no more, and StoreUnavailable, also while another migration runs."""
    name = place_of(settings)
    url = conninfo(settings, "onward migrate", f"-c lock_timeout={to_ms(_LOCK_TIMEOUT_S)}")  # else as long as it takes
    engine = create_engine(DRIVER, creator=lambda: psycopg.connect(url), poolclass=NullPool)
    with explained(name), engine.connect() as connection:
        return _migrate(connection, name)


def _migrate(connection: Connection, name: str) -> tuple[str | None, str]:
    """Migrate under a lock of the session, not of a transaction, because indexes are built outside of any.

    No migration waits for the lock: one that waited, in a transaction, would hold up the building of indexes."""
    if not connection.execute(select(func.pg_try_advisory_lock(OURS, Lock.MIGRATION))).scalar_one():
        raise StoreUnavailable(f"{name}: another migration runs")
    try:
        found = schema.found_revision(connection)
        connection.commit()
        schema.upgrade(connection, found, name)
        connection.commit()
    finally:
        _unlock(connection)
    return found, tables.REVISION


def _unlock(connection: Connection) -> None:
    """Give the lock back: a server notices only some time after the client that its session has ended.

    Until then the next migration, which does not wait, would be refused."""
    with suppress(DBAPIError):  # the connection is gone, and the lock with it
        connection.rollback()  # what an error left undone
        connection.execute(select(func.pg_advisory_unlock(OURS, Lock.MIGRATION)))
        connection.commit()
