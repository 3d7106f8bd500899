"""What an API process holds in memory of erased sessions goes, too, whichever process accepted the order."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Final

from api.access.context import Context
from api.turns.lookup import read
from core.errors import StoreUnavailable
from core.operations.erasures import Erasure

LOOK_S: Final = 1.0
"""How often is looked for orders of other processes."""


@asynccontextmanager
async def keep_forgetting(context: Context) -> AsyncIterator[None]:
    """Look for orders to erase as long as this is open, and forget what they mean."""
    with suppress(StoreUnavailable):
        await know_organisations(context)
    task = asyncio.get_running_loop().create_task(_forget_on(context))
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def _forget_on(context: Context) -> None:
    seen: dict[int, int] = {}  # of each order the number of its sessions
    while True:
        with suppress(StoreUnavailable):
            await know_organisations(context)
            for order in await read(context.services, lambda view: view.erasures.in_force()):
                if seen.get(order.erasure_id) != len(order.sessions):
                    await forget(context, order)
                    seen[order.erasure_id] = len(order.sessions)
        await asyncio.sleep(LOOK_S)


async def know_organisations(context: Context) -> None:
    """Learn whose organisation is erased. Raises StoreUnavailable."""
    context.erased.know(await read(context.services, lambda view: view.erasures.of_organisations()))


async def forget(context: Context, order: Erasure) -> None:
    """Let nothing that this process holds of an order's sessions be continued, nor rest. Raises StoreUnavailable."""
    services = context.services
    context.erased.note(order)
    for session in order.sessions:
        context.values.forget(order.namespace, session)
    turns = await read(services, lambda view: view.sweeps.turns_in(order.namespace, order.sessions, order.ordered_at))
    await services.live_state.forget_sessions(order.namespace, order.sessions, turns)
