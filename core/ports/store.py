"""The store."""

from contextlib import AbstractContextManager
from typing import Protocol

from core.store.work import View, Work


class Store(Protocol):
    """A database of everything that happened.

    Queries are the same for every adapter: `core.store` has them by subject."""

    def work(self) -> AbstractContextManager[Work]:
        """Open a unit of work, committed on leaving. Raises StoreUnavailable. It blocks: keep off the event loop."""
        ...

    def look(self) -> AbstractContextManager[View]:
        """Open a consistent view for reading. Raises StoreUnavailable."""
        ...

    def close(self) -> None: ...
