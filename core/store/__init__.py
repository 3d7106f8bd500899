"""The store: SQL through SQLAlchemy. Each subject has a repository, which `core.store.work` hands out.

SQLite lets one transaction write at a time. Postgres lets many, each statement of which sees what was committed before
it (READ COMMITTED); so whatever reads and then writes takes a row's lock or one of `core.store.database.locks` first.
"""

from core.settings import PostgresSettings
from core.store.database.connections import SqlStore
from core.store.database.sqlite import open_sqlite

__all__ = ["SqlStore", "open_postgres", "open_sqlite"]


def open_postgres(settings: PostgresSettings, application_name: str = "onward") -> SqlStore:
    """Raises ConfigError naming `postgres.url` where it is none or its schema is not this build's (`onward migrate`),
    StoreUnavailable."""
    from core.store.database import postgres  # its driver takes long to import, and who has a file needs none

    return postgres.connect(settings, application_name)
