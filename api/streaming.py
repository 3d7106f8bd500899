"""Server-sent events over raw ASGI (https://html.spec.whatwg.org/multipage/server-sent-events.html)."""

import asyncio
from collections.abc import Callable, Sequence

from api.answers import Headers, onward_headers
from api.asgi import Send
from api.turns import Delta, Turn

DONE = b"data: [DONE]\n\n"
EVENT_STREAM: Headers = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]


def event(data: bytes) -> bytes:
    return b"data: " + data + b"\n\n"


class EventSender:
    """Sends what turns emit. The first token leaves as soon as it is sampled; tokens that arrive before the event
    loop comes round again leave as one event. The response starts with the first of them, so that errors before it
    still have a status of their own.

    A reader that is slow costs the memory of one answer at most, which the context bounds.
    """

    def __init__(self, send: Send, turns: Sequence[Turn], encode: Callable[[Turn, Delta, int], bytes]) -> None:
        """`encode` makes the event of a choice's delta, whose tokens start at the given place."""
        self._send = send
        self._turns = list(turns)
        self._encode = encode
        self._pending: dict[int, Delta] = {}
        self._sent_tokens = [0] * len(turns)
        self._flush: asyncio.Task[None] | None = None
        self.started = False

    def emit(self, delta: Delta) -> None:
        waiting = self._pending.get(delta.choice)
        if waiting is None:
            self._pending[delta.choice] = delta
        else:
            waiting.absorb(delta)
        if self._flush is None or self._flush.done():
            self._flush = asyncio.get_running_loop().create_task(self._send_pending())

    async def finish(self, tail: bytes) -> None:
        """Everything that is still pending, then `tail`, then the end."""
        await self._settle()
        body = self._take_pending() + tail
        await self._start()
        await self._send({"type": "http.response.body", "body": body})

    async def abandon(self) -> None:
        """Send no more."""
        self._pending.clear()
        await self._settle()

    async def _settle(self) -> None:
        if self._flush is not None:
            await self._flush

    async def _send_pending(self) -> None:
        while self._pending:
            body = self._take_pending()
            if body:
                await self._start()
                await self._send({"type": "http.response.body", "body": body, "more_body": True})

    def _take_pending(self) -> bytes:
        deltas, self._pending = self._pending, {}
        events = []
        for choice, delta in deltas.items():
            turn = self._turns[choice]
            events.append(self._encode(turn, delta, self._sent_tokens[choice]))
            self._sent_tokens[choice] = turn.delivered_tokens = delta.token_end
        return b"".join(events)

    async def _start(self) -> None:
        if not self.started:
            self.started = True
            headers = EVENT_STREAM + onward_headers(self._turns)
            await self._send({"type": "http.response.start", "status": 200, "headers": headers})
