"""The store."""

import threading
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

    def wake(self, woken: threading.Event) -> None:
        """Set `woken` whenever a version, what serves whom, or what an operator wants has changed.

        That lasts for as long as anybody has `woken`, and while `wakes` says that this store can tell; whoever waits
        for it also looks by itself now and then."""
        ...

    @property
    def wakes(self) -> bool: ...

    def close(self) -> None: ...
