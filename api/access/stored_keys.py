"""The API keys in the store, which change while the service runs: every process looks for changes."""

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
"""The seconds between two looks: a revoked key is refused everywhere after so long."""


def known_keys(store: Store) -> list[StoredKey] | None:
    """Return the store's keys, or None while it does not answer."""
    try:
        with store.look() as view:
            return view.keys.all()
    except StoreUnavailable:
        return None


class StoredKeys(Looking):
    """Keeps a key ring like the store, within its context, and notes the use of each key once an hour."""

    def __init__(self, store: Store, ring: KeyRing, clock: Clock) -> None:
        super().__init__(LOOK_S, "API keys of the store cannot be read, and stay as they were")
        self._store, self._ring, self._clock = store, ring, clock
        self._revision = -1
        self._noted: dict[str, datetime] = {}

    async def look(self) -> None:
        """Take over what changed, and note the use of keys. Raises StoreUnavailable and MsgspecError."""
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
