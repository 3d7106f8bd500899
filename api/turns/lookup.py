"""Reading the store from the event loop, and waiting for what the writer has not put there yet."""

import asyncio
from collections.abc import Callable, Mapping
from typing import TypeVar

from api.access.services import ApiServices
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
    """On a thread. Raises StoreUnavailable."""

    def run() -> T:
        with services.store.look() as view:
            return query(view)

    return await asyncio.to_thread(run)


async def look_up(services: ApiServices, query: Query[T | None]) -> T | None:
    """The answer; waits for it up to `api.feedback.lookup_s` while the writer has yet to store what the log had when
    this was asked. None: the store has all of that, and not this. Raises StoreUnavailable where it still has not, since
    to say of what was acknowledged a moment ago that it does not exist is an answer that nobody asks for again; and
    where the log cannot say what it has."""
    if (found := await read(services, query)) is not None:
        return found
    try:
        ends = await asyncio.to_thread(_ends, services.log)
    except LogUnavailable as error:
        raise StoreUnavailable(f"not found, and what the log has besides cannot be told: {error}") from error
    deadline_s = services.clock.monotonic() + services.settings.feedback.lookup_s
    pause_s = _FIRST_PAUSE_S
    while True:
        behind, found = await read(services, lambda view: (_behind(view, ends), query(view)))
        if found is not None or not behind:
            return found
        if services.clock.monotonic() + pause_s > deadline_s:
            raise StoreUnavailable(f"not found, and {behind} records of the log are not in the store yet: try again")
        await asyncio.sleep(pause_s)
        pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)


def _ends(log: EventLog) -> dict[TopicPartition, int]:
    sources = [TopicPartition(Topic.TURNS, number) for number in range(log.partitions(Topic.TURNS))]
    return {source: log.end(source) for source in sources}


def _behind(view: View, ends: Mapping[TopicPartition, int]) -> int:
    """Records before those ends that the writer has yet to store. Asked before the query: what is stored by then, the
    query sees."""
    stored = view.offsets.of_group(WRITER)
    return sum(max(0, end - stored.get(source, 0)) for source, end in ends.items())
