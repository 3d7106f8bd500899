"""The store."""

from contextlib import AbstractContextManager
from typing import Protocol

from sqlalchemy import Connection


class Store(Protocol):
    """SQL. `core.store`'s modules hold the queries as functions of a connection, the same for every database."""

    def begin(self) -> AbstractContextManager[Connection]:
        """A read-write transaction, committed on leaving. Raises StoreUnavailable. Blocks: keep off the event loop."""
        ...

    def read(self) -> AbstractContextManager[Connection]:
        """A consistent read. Raises StoreUnavailable."""
        ...

    def close(self) -> None: ...
