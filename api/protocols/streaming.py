"""Server-sent events over raw ASGI (https://html.spec.whatwg.org/multipage/server-sent-events.html)."""

import asyncio
from collections.abc import Callable

from api.http.asgi import RawHeaders, Send
from api.protocols.exchange import Exchange
from api.protocols.onward_info import onward_headers
from api.turns.turn import Turn

_TOKEN_BYTES, _ALTERNATIVE_BYTES = 128, 112  # about, in memory: a token with its log-probability; each beside it
DONE = b"data: [DONE]\n\n"
EVENT_STREAM: RawHeaders = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]


def event(data: bytes) -> bytes:
    return b"data: " + data + b"\n\n"


def named_event(name: str, data: bytes) -> bytes:
    return b"event: " + name.encode() + b"\ndata: " + data + b"\n\n"


class EventSender:
    """A sender of the tokens that an exchange's turns emit, as events.

    The first token leaves as soon as it is sampled; tokens that arrive before the event loop comes round again leave
    as one event. The response starts with the first of them, so that errors before it still have a status of their
    own.

    While the client does not read, tokens wait here: of one answer at most, which the context bounds."""

    def __init__(self, send: Send, exchange: Exchange) -> None:
        self._send = send
        self._exchange = exchange
        self._pending: dict[int, Turn] = {}
        self._flush: asyncio.Task[None] | None = None
        self._opened = False
        self.started = False

    def notify(self, turn: Turn) -> None:
        """Note that the turn has new tokens. They leave when the event loop comes round, or before."""
        self._pending[turn.choice] = turn
        if self._flush is None or self._flush.done():
            self._flush = asyncio.get_running_loop().create_task(self._send_pending())

    def waiting_bytes(self) -> int:
        """Return the memory of the tokens that are not in an event yet, about, in bytes."""
        return sum(
            (len(turn.capture.token_ids) - turn.delivered_tokens)
            * (_TOKEN_BYTES + _ALTERNATIVE_BYTES * turn.plan.top_logprobs)
            for turn in self._exchange.turns
        )

    async def finish(self, tail: Callable[[], bytes]) -> None:
        """Send everything that is still pending, then the events of `tail`, then the end."""
        await self._settle()
        body = self._take_pending() + tail()
        await self._start()
        await self._send({"type": "http.response.body", "body": body})

    async def abandon(self) -> None:
        """Drop what is pending and send no more."""
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
        turns, self._pending = self._pending, {}
        first = b"" if self._opened else self._exchange.first_events()
        self._opened = True
        return first + b"".join(self._exchange.delta_events(turn, turn.deliver()) for turn in turns.values())

    async def _start(self) -> None:
        if not self.started:
            self.started = True
            await self._exchange.make_known()  # what leaves now has the ids, by which feedback may come at once
            headers = EVENT_STREAM + onward_headers(self._exchange.turns) + self._exchange.limits
            await self._send({"type": "http.response.start", "status": 200, "headers": headers})
