"""Answers HEAD as GET, without the body (RFC 9110, 9.3.2)."""

import asyncio
from contextlib import suppress

from api.http.asgi import App, Message, Receive, Scope, Send


async def answer_head(get: App, scope: Scope, receive: Receive, send: Send) -> None:
    """Answer as `get` answers a GET, up to its headers: a stream, which would not end, is given up there."""
    is_told = asyncio.Event()

    async def headers_alone(message: Message) -> None:
        if message["type"] == "http.response.start":
            await send(message)
            await send({"type": "http.response.body", "body": b"", "more_body": False})
            is_told.set()

    answering = asyncio.ensure_future(get({**scope, "method": "GET"}, receive, headers_alone))
    told = asyncio.ensure_future(is_told.wait())
    try:
        await asyncio.wait((answering, told), return_when=asyncio.FIRST_COMPLETED)
    finally:
        told.cancel()
        if not answering.done():
            answering.cancel()
        with suppress(asyncio.CancelledError):
            await answering
