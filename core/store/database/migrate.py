"""`onward migrate`: the database to this build's schema."""

import psycopg
from sqlalchemy import Connection, NullPool, create_engine, func, select

from core.errors import StoreUnavailable
from core.settings import PostgresSettings
from core.store.database import schema, tables
from core.store.database.connections import explained
from core.store.database.locks import OURS, Lock
from core.store.database.postgres import DRIVER, conninfo, place_of, to_ms

_LOCK_TIMEOUT_S = 5.0  # all who come after a migration that waits for a table's lock wait as long as it does


def migrate_postgres(settings: PostgresSettings) -> tuple[str | None, str]:
    """The revisions before (None: it was empty) and after. Others may go on meanwhile, see each revision. Cut short, it
    goes on where it was. Raises ConfigError where `postgres.url` is none or its schema is a newer build's, and
    StoreUnavailable, also where another migration runs."""
    name = place_of(settings)
    url = conninfo(settings, "onward migrate", f"-c lock_timeout={to_ms(_LOCK_TIMEOUT_S)}")  # else as long as it takes
    engine = create_engine(DRIVER, creator=lambda: psycopg.connect(url), poolclass=NullPool)
    with explained(name), engine.connect() as connection:
        return _migrate(connection, name)


def _migrate(connection: Connection, name: str) -> tuple[str | None, str]:
    """The lock is the session's: indices are built outside of any transaction. Nobody waits for it: who waits, in a
    transaction, would hold up the building of indices."""
    if not connection.execute(select(func.pg_try_advisory_lock(OURS, Lock.MIGRATION))).scalar_one():
        raise StoreUnavailable(f"{name}: another migration runs")
    found = schema.found_revision(connection)
    connection.commit()
    schema.upgrade(connection, found, name)
    connection.commit()
    return found, tables.REVISION
