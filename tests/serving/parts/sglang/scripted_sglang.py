"""A small HTTP server that answers SGLang's /generate as scripted, and records its requests."""

import asyncio
import json
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import web

_LAST_WORD_S = 0.01


class Line:
    """One request to answer; whatever is written is sent at once."""

    def __init__(self, request: web.Request, body: dict[str, Any]) -> None:
        self._request, self.body = request, body
        self._response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        self._told = 0

    async def open(self) -> None:
        if not self._response.prepared:
            await self._response.prepare(self._request)

    async def write(self, event: dict[str, Any]) -> None:
        await self.open()
        await self._response.write(b"data: " + json.dumps(event).encode() + b"\n\n")

    async def token(self, token: int, finish: dict[str, Any] | None = None, label: str = "3") -> None:
        self._told += 1
        meta = {
            "finish_reason": finish,
            "completion_tokens": self._told,
            "cached_tokens": 1,
            "weight_version": label,
            "output_token_logprobs": [[-0.5, token, None]],
        }
        await self.write({"output_ids": [token], "meta_info": meta})

    async def end(self) -> web.StreamResponse:
        """End the stream a moment after the last token, as SGLang does."""
        await asyncio.sleep(_LAST_WORD_S)
        await self._response.write(b"data: [DONE]\n\n")
        return self._response

    def die(self) -> web.StreamResponse:
        """Break the connection, as a killed process does."""
        assert self._request.transport is not None
        self._request.transport.abort()
        return self._response


Script = Callable[[Line], Awaitable[web.StreamResponse]]


async def answers(line: Line) -> web.StreamResponse:
    """Send tokens 10, 11, ..., as many as were requested."""
    wanted = line.body["sampling_params"]["max_new_tokens"]
    for place in range(wanted):
        await line.token(10 + place, {"type": "length"} if place == wanted - 1 else None)
    return await line.end()


async def hangs(line: Line) -> web.StreamResponse:
    await line.open()
    await asyncio.Event().wait()
    raise AssertionError("nothing sets it")


async def dies(line: Line) -> web.StreamResponse:
    return line.die()


async def dies_after_the_headers(line: Line) -> web.StreamResponse:
    await line.open()
    return line.die()


async def dies_after_a_token(line: Line) -> web.StreamResponse:
    await line.token(7)
    return line.die()


async def ends_without_an_end(line: Line) -> web.StreamResponse:
    await line.open()
    return await line.end()


async def hangs_after_a_token(line: Line) -> web.StreamResponse:
    await line.token(7)
    return await hangs(line)


async def is_busy(_: Line) -> web.StreamResponse:
    return web.json_response({"error": {"message": "busy"}}, status=503)


async def refuses(_: Line) -> web.StreamResponse:
    return web.json_response({"error": {"message": "top_p must be in (0, 1], got 2."}}, status=400)


async def refuses_midway(line: Line) -> web.StreamResponse:
    await line.write({"error": {"message": "top_p must be in (0, 1], got 2.", "code": 400}})
    return await line.end()


async def gives_up(line: Line) -> web.StreamResponse:
    await line.write({"output_ids": [], "meta_info": {"finish_reason": {"type": "abort", "message": "shutting down"}}})
    return await line.end()


class ScriptedSglang:
    """A server whose requests each take the next of `scripts`; with none left they are answered in full."""

    def __init__(self) -> None:
        self.scripts: deque[Script] = deque()
        self.asked: list[dict[str, Any]] = []
        self.connections: set[object] = set()  # the clients' ends
        self.left = asyncio.Event()  # a client hung up
        self.url = ""

    async def start(self) -> None:
        app = web.Application()
        app.router.add_post("/generate", self._generate)
        self._runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=0)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"

    async def close(self) -> None:
        await self._runner.cleanup()

    async def _generate(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.asked.append(body)
        assert request.transport is not None
        self.connections.add(request.transport.get_extra_info("peername"))
        try:
            return await (self.scripts.popleft() if self.scripts else answers)(Line(request, body))
        except asyncio.CancelledError:
            self.left.set()
            raise
