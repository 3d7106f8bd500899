"""The keys of the store, which come and go while the service runs: every process looks for news of them."""

import asyncio
import logging
from datetime import datetime
from types import TracebackType
from typing import Final, Self

import msgspec

from api.access.identity import KeyRing
from core.errors import StoreUnavailable
from core.operations.keys import StoredKey
from core.ports import Clock, Store

logger = logging.getLogger(__name__)
LOOK_S: Final = 1.0
"""How often it is looked: a revoked key ends so soon everywhere."""


def known_keys(store: Store) -> list[StoredKey] | None:
    """Return the store's keys, or None while it does not answer."""
    try:
        with store.look() as view:
            return view.keys.all()
    except StoreUnavailable:
        return None


class StoredKeys:
    """Keeps a ring at the store's keys, within its context; and notes, once an hour for each, that they are used."""

    def __init__(self, store: Store, ring: KeyRing, clock: Clock) -> None:
        self._store, self._ring, self._clock = store, ring, clock
        self._revision = -1
        self._noted: dict[str, datetime] = {}
        self._looking = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        await self.refresh()
        self._task = asyncio.get_running_loop().create_task(self._keep_looking())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def refresh(self) -> None:
        """Learn what changed; what was known holds while the store does not answer, or cannot be understood."""
        async with self._looking:  # so that no older look is learned after a newer one
            hour = self._clock.now().replace(minute=0, second=0, microsecond=0)
            used, self._ring.used = self._ring.used, set()
            news = {key_id for key_id in used if self._noted.get(key_id) != hour}
            try:
                found = await asyncio.to_thread(self._look, news, hour)
            except (StoreUnavailable, msgspec.MsgspecError) as error:
                logger.warning("API keys of the store cannot be read, and stay as they were: %s", error)
                self._ring.used |= used
                return
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

    async def _keep_looking(self) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            await self.refresh()
