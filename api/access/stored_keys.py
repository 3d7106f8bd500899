"""The keys of the store, which come and go while the service runs: every process looks for news of them."""

import asyncio
from datetime import datetime
from typing import Final

import msgspec

from api.access.identity import KeyRing
from api.access.looking import Looking
from core.errors import StoreUnavailable
from core.operations.keys import StoredKey
from core.ports import Clock, Store

LOOK_S: Final = 1.0
"""How often it is looked: a revoked key ends so soon everywhere."""


def known_keys(store: Store) -> list[StoredKey] | None:
    """Return the store's keys, or None while it does not answer."""
    try:
        with store.look() as view:
            return view.keys.all()
    except StoreUnavailable:
        return None


class StoredKeys(Looking):
    """Keeps a ring at the store's keys, within its context; and notes, once an hour for each, that they are used."""

    def __init__(self, store: Store, ring: KeyRing, clock: Clock) -> None:
        super().__init__(LOOK_S, "API keys of the store cannot be read, and stay as they were")
        self._store, self._ring, self._clock = store, ring, clock
        self._revision = -1
        self._noted: dict[str, datetime] = {}

    async def look(self) -> None:
        """Learn what changed, and note the use of keys. Raises StoreUnavailable and MsgspecError."""
        hour = self._clock.now().replace(minute=0, second=0, microsecond=0)
        used, self._ring.used = self._ring.used, set()
        news = {key_id for key_id in used if self._noted.get(key_id) != hour}
        try:
            found = await asyncio.to_thread(self._look, news, hour)
        except (StoreUnavailable, msgspec.MsgspecError):
            self._ring.used |= used
            raise
        self._noted.update(dict.fromkeys(news, hour))
        if found is not None:
            self._revision, keys = found
            self._ring.learn(keys)

    def _look(self, used: set[str], hour: datetime) -> tuple[int, list[StoredKey]] | None:
        """Return the keys and their revision; None where nothing changed."""
        if used:
            with self._store.work() as work:
                work.keys.note_use(used, hour)
        with self._store.look() as view:
            revision = view.keys.revision()
            return None if revision == self._revision else (revision, view.keys.all())
