"""Streams from the engine's thread to the event loops of clients."""

import asyncio
import logging
import threading
from collections import deque
from typing import NamedTuple
from weakref import WeakKeyDictionary

from core.errors import EngineUnavailable, InvalidRequest
from core.events import FinishReason, GrammarMasks
from core.ids import PolicyRef
from core.ports import TokenChunk

logger = logging.getLogger(__name__)


class Token(NamedTuple):
    token_id: int
    logprob: float
    version: PolicyRef
    top: tuple[tuple[int, float], ...] | None
    finish_reason: FinishReason | None
    allowed: tuple[int, ...] | None = None
    grammar: GrammarMasks | None = None


Item = Token | TokenChunk | EngineUnavailable | InvalidRequest  # a chunk or an error is always the last


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
        """All that has come and is of one version.

        Raises EngineUnavailable when the engine gave the request up, InvalidRequest when it could not go on."""
        while not self._items:
            self._waiter = self.loop.create_future()
            await self._waiter
        first = self._items.popleft()
        if isinstance(first, EngineUnavailable | InvalidRequest):
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
            allowed=() if first.allowed is None else tuple([token.allowed or () for token in tokens]),
            grammar=tokens[-1].grammar,
            finish_reason=tokens[-1].finish_reason,
        )


_HELD_TOKENS = 16  # of a stream that nobody waits for


class Outbox:
    """The results of a step, delivered to each event loop in a single call.

    A loop that has not processed the last call yet is not called again, and finds both results together. Tokens that
    nobody waits for are held back until there are several: telling them takes the event loop's time from others."""

    def __init__(self) -> None:
        self._held: WeakKeyDictionary[Stream, list[Token]] = WeakKeyDictionary()
        self._boxes: WeakKeyDictionary[asyncio.AbstractEventLoop, _Box] = WeakKeyDictionary()
        self._filled: dict[asyncio.AbstractEventLoop, list[tuple[Stream, Item]]] = {}

    def add(self, stream: Stream, item: Item) -> None:
        """Send an item with the next step's, and before it what was held back of its stream."""
        filled = self._filled.setdefault(stream.loop, [])
        filled += [(stream, token) for token in self._held.pop(stream, ())]
        filled.append((stream, item))

    def hold(self, stream: Stream, token: Token) -> None:
        """Send a token that is not the last once there are several."""
        held = self._held.setdefault(stream, [])
        if len(held) + 1 < _HELD_TOKENS:
            held.append(token)
        else:
            self.add(stream, token)

    def send(self) -> None:
        filled, self._filled = self._filled, {}
        for loop, items in filled.items():
            box = self._boxes.setdefault(loop, _Box())
            if box.put(items):
                try:
                    loop.call_soon_threadsafe(box.deliver)
                except RuntimeError:  # the loop is closed: nobody is left to read
                    logger.warning("%d tokens found their event loop closed", len(items))


class _Box:
    """Between the engine's thread, which puts, and one event loop, which delivers."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._items: list[tuple[Stream, Item]] = []

    def put(self, items: list[tuple[Stream, Item]]) -> bool:
        """Add items; return whether the box was empty, so that the loop must be called."""
        with self._lock:
            was_empty = not self._items
            self._items += items
        return was_empty

    def deliver(self) -> None:
        with self._lock:
            items, self._items = self._items, []
        for stream, item in items:
            stream.put(item)
