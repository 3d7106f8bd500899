"""An OpenAI endpoint whose model says again what it was told last, or fails: what an environment asks over HTTP."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web


@dataclass
class ScriptedModel:
    """`asked` are the requests so far, with their headers.

    `fails` answers each with that status, `says` with that text."""

    base_url: str = ""
    fails: int | None = None
    says: str | None = None
    asked: list[tuple[dict[str, str], dict[str, Any]]] = field(default_factory=list)

    async def answer(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.asked.append((dict(request.headers), body))
        if self.fails is not None:
            return web.json_response({"error": {"message": "out of order"}}, status=self.fails)
        content = body["messages"][-1]["content"]
        told = content if isinstance(content, str) else content[0]["text"]
        said = told if self.says is None else self.says
        turn = {"x-onward-inference-id": f"turn-{len(self.asked)}", "x-onward-policy-version": "0"}
        common = {"id": "c", "created": 1, "model": body["model"]}
        usage = {"prompt_tokens": 5, "completion_tokens": 3, "total_tokens": 8}
        message = {"role": "assistant", "content": said}
        if not body.get("stream"):
            choice = {"index": 0, "finish_reason": "stop", "message": message}
            whole = {**common, "object": "chat.completion", "choices": [choice], "usage": usage}
            return web.json_response(whole, headers=turn)
        response = web.StreamResponse(headers={"content-type": "text/event-stream", **turn})
        await response.prepare(request)
        for choice in ({"delta": message, "finish_reason": None}, {"delta": {}, "finish_reason": "stop"}):
            await self._event(response, {**common, "choices": [{"index": 0, **choice}]})
        await self._event(response, {**common, "choices": [], "usage": usage})
        await response.write(b"data: [DONE]\n\n")
        return response

    async def _event(self, response: web.StreamResponse, chunk: dict[str, Any]) -> None:
        await response.write(b"data: " + json.dumps({"object": "chat.completion.chunk", **chunk}).encode() + b"\n\n")


@asynccontextmanager
async def scripted_model() -> AsyncIterator[ScriptedModel]:
    model = ScriptedModel()
    app = web.Application()
    app.router.add_post("/v1/chat/completions", model.answer)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    model.base_url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
    try:
        yield model
    finally:
        await asyncio.wait_for(runner.cleanup(), 10)
