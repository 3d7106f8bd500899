"""Lets one task of one process at a time make what others wait for."""

import asyncio
import fcntl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

_LOOKS_EVERY_SECONDS = 0.05


@asynccontextmanager
async def alone(path: Path) -> AsyncIterator[None]:
    """Hold a lock, by a file that stays; a process that ends lets go of it.

    Who waits looks again and again, and takes no thread: those are few, and who holds the lock needs them, too."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        while not _taken(file.fileno()):  # noqa: ASYNC110 - no event tells of other processes
            await asyncio.sleep(_LOOKS_EVERY_SECONDS)
        yield


def _taken(file: int) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
