"""Sandboxes that are made ahead, each for a request that is expected."""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable

from environments.errors import InfrastructureFailure
from environments.sandboxes.sandbox import Sandbox, SandboxSpec


class Expected:
    """At most so many, by their keys; the oldest goes first. `open_one` opens each."""

    def __init__(self, open_one: Callable[[SandboxSpec], Awaitable[Sandbox]], most: int) -> None:
        self._open_one, self._most = open_one, most
        self._made: OrderedDict[str, asyncio.Task[Sandbox]] = OrderedDict()
        self._leaving: set[asyncio.Task[None]] = set()

    def add(self, key: str, spec: SandboxSpec) -> None:
        """Begin to make one of that key, unless it is there."""
        if key in self._made:
            return
        self._made[key] = asyncio.create_task(self._open(spec))
        while len(self._made) > self._most:
            leaving = asyncio.create_task(_dismiss(self._made.popitem(last=False)[1]))
            self._leaving.add(leaving)
            leaving.add_done_callback(self._leaving.discard)

    async def take(self, key: str) -> Sandbox | None:
        """Return the one of that key once it is made, None where there is none or it cannot be made."""
        made = self._made.pop(key, None)
        if made is None:
            return None
        try:
            return await asyncio.shield(made)
        except InfrastructureFailure:
            return None
        except asyncio.CancelledError:
            await _dismiss(made)
            raise

    async def close(self) -> None:
        """Close all that nobody took."""
        made = list(self._made.values())
        self._made.clear()
        await asyncio.gather(*self._leaving, *map(_dismiss, made))

    async def _open(self, spec: SandboxSpec) -> Sandbox:
        return await self._open_one(spec)


async def _dismiss(made: "asyncio.Task[Sandbox]") -> None:
    """Close a sandbox that nobody will take, or stop making it."""
    made.cancel()
    (result,) = await asyncio.gather(made, return_exceptions=True)
    if not isinstance(result, BaseException):
        await result.close()
