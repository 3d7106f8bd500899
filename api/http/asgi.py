"""The HTTP of the hot routes as plain ASGI (https://asgi.readthedocs.io).

A framework's request and response objects cost more than making a turn durable does."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from types import TracebackType
from typing import Any

from api.http.errors import ErrorShape, error_headers, error_response, in_openais_shape
from core.errors import InvalidRequest, RequestError, TooLarge, Unavailable

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]
RawHeaders = list[tuple[bytes, bytes]]
Headers = dict[bytes, bytes]

_WATCH_AFTER_S = 0.02
JSON = b"application/json"


class ClientGone(Exception):
    """The client hung up before its request was whole."""


def header_text(headers: Headers, name: bytes) -> str | None:
    """Return a header as text, or None when absent. Raises InvalidRequest naming it when it is not printable ASCII."""
    value = headers.get(name)
    if value is None:
        return None
    text = value.decode("latin-1").strip()
    if not (text.isascii() and text.isprintable()):
        raise InvalidRequest(f"header {name.decode()} must be printable ASCII", param=name.decode())
    return text


def hint_text(headers: Headers, name: bytes) -> str | None:
    """Return a header on which no answer depends as text: None also when it is not printable ASCII."""
    if name not in headers:
        return None
    try:
        return header_text(headers, name)
    except InvalidRequest:
        return None


async def send_body(
    send: Send, status: int, body: bytes, headers: Iterable[tuple[bytes, bytes]] = (), media: bytes = JSON
) -> None:
    start = [(b"content-type", media), (b"content-length", str(len(body)).encode()), *headers]
    await send({"type": "http.response.start", "status": status, "headers": start})
    await send({"type": "http.response.body", "body": body})


async def send_error(send: Send, error: RequestError | Unavailable, shape: ErrorShape = in_openais_shape) -> None:
    status, body = error_response(error, shape)
    await send_body(send, status, body, raw_error_headers(error))


def raw_error_headers(error: RequestError | Unavailable) -> RawHeaders:
    headers = [(name.encode(), value.encode()) for name, value in error_headers(error).items()]
    if isinstance(error, TooLarge):  # the rest of the body is unread
        headers.append((b"connection", b"close"))
    return headers


class HangUp:
    """A block in which the current task is cancelled when its client goes away; the block then ends quietly.

    A cancellation from elsewhere (a server that shuts down) passes through. The watch starts a moment late: a task
    for each answer that is ready at once would cost more than making the answer durable."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._watch: asyncio.Task[None] | None = None
        self._happened = False

    async def __aenter__(self) -> None:
        request = asyncio.current_task()
        assert request is not None
        self._request = request
        self._timer = asyncio.get_running_loop().call_later(_WATCH_AFTER_S, self._begin)

    def _begin(self) -> None:
        self._watch = asyncio.get_running_loop().create_task(self._wait())

    async def _wait(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self._happened = True
        self._request.cancel()

    async def __aexit__(
        self, kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> bool:
        self._timer.cancel()
        if self._watch is not None:
            self._watch.cancel()
        if kind is asyncio.CancelledError and self._happened:
            self._request.uncancel()
            return True
        return False
