"""Looking for news: what a process of the API knows of the store follows what other processes change there."""

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
    """Looks for news, on one event loop and within its context, again and again.

    Only one look goes on at a time, so that nothing older is learned after something newer. A look that fails because
    something does not answer, or cannot be understood, is logged, and the next one comes as usual."""

    def __init__(self, every_s: float, failed: str) -> None:
        """Look every `every_s` seconds. `failed` tells the log what a failed look means."""
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
        """Look once. Raises StoreUnavailable, LogUnavailable and MsgspecError, which leave what was known."""

    async def begin(self) -> None:
        """Look for the first time, before the context is entered."""
        await self.refresh()

    def hasten(self) -> None:
        """Look at once instead of when the pause is over."""
        self._hastened.set()

    async def refresh(self) -> None:
        """Look now, or as soon as the present look is over; log a failure."""
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
