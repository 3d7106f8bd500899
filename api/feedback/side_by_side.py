"""Work on the many items of one request: in order for each subject, concurrently for different ones, or in slices."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable, Iterable, Sequence
from typing import TypeVar
from weakref import WeakValueDictionary

T = TypeVar("T")
_AT_ONCE = 16  # subjects of a request
_OF_A_CALLER = 32  # places, of all requests of a caller: each is a look at the store, for which all wait in one line
SLICE = 64
_rooms: WeakValueDictionary[tuple[asyncio.AbstractEventLoop, Hashable], asyncio.Semaphore] = WeakValueDictionary()


async def side_by_side(caller: Hashable, subjects: Sequence[Hashable], work: Callable[[int], Awaitable[T]]) -> list[T]:
    """Return what `work` makes of each place in `subjects`, in their order; it raises nothing.

    Work that waits for nothing gives way after each place: a request of many reports would else stop all others. Of a
    caller's requests no more is done at once than of two, however many there are."""
    chains: dict[Hashable, list[int]] = {}
    for place, subject in enumerate(subjects):
        chains.setdefault(subject, []).append(place)
    done: dict[int, T] = {}
    room, of_caller = asyncio.Semaphore(_AT_ONCE), _room_of(caller)

    async def follow(places: Sequence[int]) -> None:
        async with room:
            for place in places:
                async with of_caller:
                    done[place] = await work(place)
                await asyncio.sleep(0)

    async with asyncio.TaskGroup() as group:
        for places in chains.values():
            group.create_task(follow(places))
    return [done[place] for place in range(len(subjects))]


def _room_of(caller: Hashable) -> asyncio.Semaphore:
    """Return the room that a caller's requests share while there are any."""
    key = asyncio.get_running_loop(), caller
    found = _rooms.get(key)
    if found is None:
        found = _rooms[key] = asyncio.Semaphore(_OF_A_CALLER)
    return found


async def in_slices(items: Iterable[T]) -> AsyncIterator[T]:
    """Yield the items; between any `SLICE` of them and the next, others have their turn on the event loop."""
    for number, item in enumerate(items):
        if number and not number % SLICE:
            await asyncio.sleep(0)
        yield item
