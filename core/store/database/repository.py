"""The base class of all repositories."""

from typing import Final

from sqlalchemy import Connection, text

CHANNEL: Final = "onward_releases"
"""The channel on which PostgreSQL announces changes of versions, of what serves whom, and of orders."""
_NOTIFY: Final = text(f"NOTIFY {CHANNEL}")


class Repository:
    """The rows of one subject, as one transaction sees them."""

    __slots__ = ("_connection",)

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def _wake_watchers(self) -> None:
        """Wake those who wait for changes of releases, once this transaction is committed.

        In a store of one machine nobody is woken: they look for themselves."""
        if self._connection.dialect.name == "postgresql":
            self._connection.execute(_NOTIFY)
