"""Reading the store from the event loop, and waiting for what the writer has not put there yet."""

import asyncio
from collections.abc import Callable
from typing import TypeVar

from sqlalchemy import Connection

from api.services import ApiServices

T = TypeVar("T")
Query = Callable[[Connection], T]

_FIRST_PAUSE_S = 0.02
_LONGEST_PAUSE_S = 0.2


async def read(services: ApiServices, query: Query[T]) -> T:
    """On a thread. Raises StoreUnavailable."""

    def run() -> T:
        with services.store.read() as connection:
            return query(connection)

    return await asyncio.to_thread(run)


async def look_up(services: ApiServices, query: Query[T | None]) -> T | None:
    """The first answer that is not None, within `feedback_lookup_s`. Raises StoreUnavailable."""
    deadline_s = services.clock.monotonic() + services.settings.feedback_lookup_s
    pause_s = _FIRST_PAUSE_S
    while (found := await read(services, query)) is None:
        if services.clock.monotonic() + pause_s > deadline_s:
            return None
        await asyncio.sleep(pause_s)
        pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
    return found
