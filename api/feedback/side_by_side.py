"""Work on many reports at once: in order for each subject, side by side for different ones."""

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Sequence
from typing import TypeVar

T = TypeVar("T")
_AT_ONCE = 16  # subjects


async def side_by_side(subjects: Sequence[Hashable], work: Callable[[int], Awaitable[T]]) -> list[T]:
    """Return what `work` makes of each place in `subjects`, in their order; it raises nothing."""
    chains: dict[Hashable, list[int]] = {}
    for place, subject in enumerate(subjects):
        chains.setdefault(subject, []).append(place)
    done: dict[int, T] = {}
    room = asyncio.Semaphore(_AT_ONCE)

    async def follow(places: Sequence[int]) -> None:
        async with room:
            for place in places:
                done[place] = await work(place)

    async with asyncio.TaskGroup() as group:
        for places in chains.values():
            group.create_task(follow(places))
    return [done[place] for place in range(len(subjects))]
