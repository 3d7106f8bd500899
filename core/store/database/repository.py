"""What all repositories are made of."""

from typing import Final

from sqlalchemy import Connection, text

CHANNEL: Final = "onward_releases"
"""On which PostgreSQL tells that a version, what serves whom, or what an operator wants has changed."""
_NOTIFY: Final = text(f"NOTIFY {CHANNEL}")


class Repository:
    """The rows of one subject, as one transaction sees them."""

    __slots__ = ("_connection",)

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def _wake_watchers(self) -> None:
        """Those of releases, once this is committed; in a store of one machine they look for themselves."""
        if self._connection.dialect.name == "postgresql":
            self._connection.execute(_NOTIFY)
