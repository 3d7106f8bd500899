"""Versions whose weights were erased, of which no host keeps anything in its caches."""

from collections.abc import Callable

from core.ports import Store


class Withdrawals:
    """What one host has dropped. One that was away drops the rest at its first look, before it serves anything."""

    def __init__(self, store: Store, forget: Callable[[str], None]) -> None:
        """`forget` removes the version with a digest from this host's caches."""
        self._store, self._forget = store, forget
        self._forgotten: set[str] = set()

    def look(self) -> int:
        """Drop what was withdrawn since the last look; return how many are dropped by now. Raises StoreUnavailable."""
        with self._store.look() as view:
            withdrawn = view.erasures.withdrawn()
        for digest in withdrawn - self._forgotten:
            self._forget(digest)
            self._forgotten.add(digest)
        return len(withdrawn & self._forgotten)
