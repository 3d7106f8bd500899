"""Polling the store, so that what an API process keeps in memory follows what other processes change."""

import asyncio
import logging
from abc import ABC, abstractmethod
from types import TracebackType
from typing import Final, Self

import msgspec

from core.errors import LogUnavailable, StoreUnavailable

logger = logging.getLogger(__name__)
_LATER: Final = (StoreUnavailable, LogUnavailable, msgspec.MsgspecError)


class Looking(ABC):
    """Looks for changes at regular times, on one event loop and within its context.

    Only one look runs at a time, so that no older state replaces a newer one. If store or log do not answer, or a row
    cannot be decoded, the failure is logged and the next look comes as usual."""

    def __init__(self, every_s: float, failed: str) -> None:
        """Look every `every_s` seconds. `failed` says in the log what a failed look means."""
        self._every_s, self._failed = every_s, failed
        self._one_look = asyncio.Lock()
        self._hastened = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        await self.begin()
        self._task = asyncio.get_running_loop().create_task(self._keep_looking())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    @abstractmethod
    async def look(self) -> None:
        """Look once. If it raises StoreUnavailable, LogUnavailable or MsgspecError, what was known stays."""

    async def begin(self) -> None:
        """Do what comes before the context is entered: look for the first time."""
        await self.refresh()

    def hasten(self) -> None:
        """Look at once, without waiting for the end of the pause."""
        self._hastened.set()

    async def refresh(self) -> None:
        """Look now, or as soon as a running look is over; log a failure."""
        async with self._one_look:
            try:
                await self.look()
            except _LATER as error:
                logger.warning("%s: %s", self._failed, error)

    async def _keep_looking(self) -> None:
        while True:
            try:
                await asyncio.wait_for(self._hastened.wait(), self._every_s)
                self._hastened.clear()
            except TimeoutError:
                pass
            await self.refresh()
