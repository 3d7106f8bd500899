"""From the engine's thread to the event loops of those who asked."""

import asyncio
import logging
from collections import deque
from typing import NamedTuple

from core.errors import EngineUnavailable
from core.events import FinishReason
from core.ids import Version
from core.ports import TokenChunk

logger = logging.getLogger(__name__)


class Token(NamedTuple):
    token_id: int
    logprob: float
    version: Version
    top: tuple[tuple[int, float], ...] | None
    finish_reason: FinishReason | None


Item = Token | TokenChunk | EngineUnavailable  # a chunk or an error is always the last


class Stream:
    """One request's answer on its event loop. Belongs to that loop; the engine reaches it through the Outbox."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self._items: deque[Item] = deque()
        self._waiter: asyncio.Future[None] | None = None

    def put(self, item: Item) -> None:
        self._items.append(item)
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def next(self) -> TokenChunk:
        """All that has come and is of one version. Raises EngineUnavailable when the engine gave the request up."""
        while not self._items:
            self._waiter = self.loop.create_future()
            await self._waiter
        first = self._items.popleft()
        if isinstance(first, EngineUnavailable):
            raise first
        if isinstance(first, TokenChunk):
            return first
        tokens = [first]
        while self._items and isinstance(self._items[0], Token) and self._items[0].version == first.version:
            tokens.append(self._items[0])
            self._items.popleft()
        return TokenChunk(
            token_ids=tuple([token.token_id for token in tokens]),
            logprobs=tuple([token.logprob for token in tokens]),
            version=first.version,
            top_logprobs=() if first.top is None else tuple([token.top or () for token in tokens]),
            finish_reason=tokens[-1].finish_reason,
        )


class Outbox:
    """What one step made, handed to each event loop in a single call."""

    def __init__(self) -> None:
        self._items: dict[asyncio.AbstractEventLoop, list[tuple[Stream, Item]]] = {}

    def add(self, stream: Stream, item: Item) -> None:
        self._items.setdefault(stream.loop, []).append((stream, item))

    def send(self) -> None:
        pending, self._items = self._items, {}
        for loop, items in pending.items():
            try:
                loop.call_soon_threadsafe(_deliver, items)
            except RuntimeError:  # the loop is closed: nobody is left to read
                logger.warning("%d tokens found their event loop closed", len(items))


def _deliver(items: list[tuple[Stream, Item]]) -> None:
    for stream, item in items:
        stream.put(item)
