"""The store: SQL through SQLAlchemy. One module per subject, each a set of functions over a connection."""

from core.store.database import SqlStore, open_sqlite

__all__ = ["SqlStore", "open_sqlite"]
