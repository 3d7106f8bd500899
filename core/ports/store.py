"""The store."""

from contextlib import AbstractContextManager
from typing import Protocol

from core.store.work import View, Work


class Store(Protocol):
    """Rows of all that happened, in a database. The queries are the same for every one: `core.store` has them by
    subject."""

    def work(self) -> AbstractContextManager[Work]:
        """A unit of work, committed on leaving. Raises StoreUnavailable. Blocks: keep off the event loop."""
        ...

    def look(self) -> AbstractContextManager[View]:
        """A consistent read. Raises StoreUnavailable."""
        ...

    def close(self) -> None: ...
