"""The store: SQL through SQLAlchemy, one repository for each subject, handed out by `core.store.work`.

SQLite lets one transaction write at a time. Postgres lets many, each statement of which sees what was committed
before it (READ COMMITTED); so code that reads and then writes first takes a row's lock or one of
`core.store.database.locks`."""

from core.settings import PostgresSettings
from core.store.database.connections import SqlStore
from core.store.database.sqlite import open_sqlite

__all__ = ["SqlStore", "open_postgres", "open_sqlite"]


def open_postgres(settings: PostgresSettings, application_name: str = "onward") -> SqlStore:
    """Connect to the store on a PostgreSQL server.

    Raises StoreUnavailable, and ConfigError when `postgres.url` is no such URL or the schema is not this build's (then
    run `onward migrate`)."""
    from core.store.database import postgres  # its driver takes long to import, and who has a file needs none

    return postgres.connect(settings, application_name)
