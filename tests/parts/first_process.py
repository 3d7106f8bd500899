"""The first process's end of a line, on an event loop of its own."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from core.beside.listener import Listener


@contextmanager
def listening(prepare: Callable[[Listener], None], path: Path) -> Iterator[None]:
    """Listen at `path`, as `prepare` says what is answered, until the block ends."""
    ready, over = threading.Event(), asyncio.Event()
    loop = asyncio.new_event_loop()

    async def listen() -> None:
        listener = Listener()
        prepare(listener)
        async with listener.listening(path):
            ready.set()
            await over.wait()

    thread = threading.Thread(target=loop.run_until_complete, args=(listen(),))
    thread.start()
    ready.wait()
    try:
        yield
    finally:
        loop.call_soon_threadsafe(over.set)
        thread.join()
        loop.close()
