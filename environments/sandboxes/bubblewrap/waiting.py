"""Waits for a descriptor on the event loop."""

import asyncio


async def readable(descriptor: int) -> None:
    """Wait until there is something to read, or the other end is closed."""
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[None] = loop.create_future()

    def tell() -> None:
        if not ready.done():
            ready.set_result(None)

    loop.add_reader(descriptor, tell)
    try:
        await ready
    finally:
        loop.remove_reader(descriptor)
