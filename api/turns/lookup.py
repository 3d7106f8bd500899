"""Reading the store from the event loop, and waiting for what the writer has not put there yet."""

import asyncio
from collections.abc import Callable, Mapping
from typing import TypeVar

from api.access.services import ApiServices
from api.http.background import on_a_thread
from core.errors import LogUnavailable, StoreUnavailable
from core.events import Topic
from core.ports import EventLog, TopicPartition
from core.store.offsets import WRITER
from core.store.work import View

T = TypeVar("T")
Query = Callable[[View], T]

_FIRST_PAUSE_S = 0.02
_LONGEST_PAUSE_S = 0.2


async def read(services: ApiServices, query: Query[T]) -> T:
    """Run a query on a thread. Raises StoreUnavailable."""

    def run() -> T:
        with services.store.look() as view:
            return query(view)

    return await on_a_thread(run)


async def look_up(services: ApiServices, query: Query[T | None]) -> T | None:
    """Run a query, waiting up to `api.feedback.lookup_s` for records that the log has and the store does not yet.

    None means that the store has all that the log had at the start, and not this. Raises StoreUnavailable where the
    store still lacks some of it, since nobody asks again after hearing that what was acknowledged a moment ago does
    not exist; and where the log cannot say what it has."""
    if (found := await read(services, query)) is not None:
        return found
    return await _wait_for(services, query, lambda found: found is not None)


async def read_all(services: ApiServices, query: Query[T]) -> T:
    """Run a query on a store that has all that the log had at the start, waiting as `look_up` does.

    For what must be the only one, and would look so while another is on its way. Raises StoreUnavailable."""
    return await _wait_for(services, query, lambda _: False)


async def _wait_for(services: ApiServices, query: Query[T], suffices: Callable[[T], bool]) -> T:
    """Return what the query finds once it suffices, or once the store has all. Raises StoreUnavailable."""
    try:
        ends = await on_a_thread(_ends, services.log)
    except LogUnavailable as error:
        raise StoreUnavailable(f"not found, and the log does not say whether it has more: {error}") from error
    deadline_s = services.clock.monotonic() + services.settings.feedback.lookup_s
    pause_s = _FIRST_PAUSE_S
    while True:
        behind, found = await read(services, lambda view: (_behind(view, ends), query(view)))
        if suffices(found) or not behind:
            return found
        if services.clock.monotonic() + pause_s > deadline_s:
            raise StoreUnavailable(f"not found, and {behind} records of the log are not in the store yet: try again")
        await asyncio.sleep(pause_s)
        pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)


def _ends(log: EventLog) -> dict[TopicPartition, int]:
    sources = [TopicPartition(Topic.TURNS, number) for number in range(log.partitions(Topic.TURNS))]
    return {source: log.end(source) for source in sources}


def _behind(view: View, ends: Mapping[TopicPartition, int]) -> int:
    """Count the records before those ends that the writer has yet to store.

    It is called before the query, which then sees all that was stored by this moment."""
    stored = view.offsets.of_group(WRITER)
    return sum(max(0, end - stored.get(source, 0)) for source, end in ends.items())
