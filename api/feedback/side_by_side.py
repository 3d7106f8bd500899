"""Work on what is many in one request: in order for each subject, side by side for different ones, or in slices."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable, Iterable, Sequence
from typing import TypeVar

T = TypeVar("T")
_AT_ONCE = 16  # subjects
SLICE = 64


async def side_by_side(subjects: Sequence[Hashable], work: Callable[[int], Awaitable[T]]) -> list[T]:
    """Return what `work` makes of each place in `subjects`, in their order; it raises nothing.

    Work that waits for nothing gives way after each place: a request of many reports would else stop all others."""
    chains: dict[Hashable, list[int]] = {}
    for place, subject in enumerate(subjects):
        chains.setdefault(subject, []).append(place)
    done: dict[int, T] = {}
    room = asyncio.Semaphore(_AT_ONCE)

    async def follow(places: Sequence[int]) -> None:
        async with room:
            for place in places:
                done[place] = await work(place)
                await asyncio.sleep(0)

    async with asyncio.TaskGroup() as group:
        for places in chains.values():
            group.create_task(follow(places))
    return [done[place] for place in range(len(subjects))]


async def in_slices(items: Iterable[T]) -> AsyncIterator[T]:
    """Yield the items; between any `SLICE` of them and the next, others have their turn on the event loop."""
    for number, item in enumerate(items):
        if number and not number % SLICE:
            await asyncio.sleep(0)
        yield item
