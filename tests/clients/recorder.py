"""A proxy before a service that records what clients send it, and which answers they got.

    python tests/clients/recorder.py PORT UPSTREAM FILE [LOST ...]

It appends a line of JSON to FILE for each request to a generating route: path, headers that may tell a session, body,
status, and the answer's ids, text and calls. Keys, cookies and all other headers are left out.
LOST are the numbers of requests whose answers are lost on the way: the client gets a 502."""

import asyncio
import json
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from queue import Queue
from typing import Any

import aiohttp
from aiohttp import web

KEPT_HEADERS = ("user-agent", "session", "conversation", "thread", "x-", "originator", "anthropic", "openai")
_DROPPED = ("x-api-key", "x-forwarded")
_RETRY = "x-stainless-retry-count"
_STORED_S = 120  # within which a turn is in the store, on whatever machine
_HOP = ("host", "content-length", "transfer-encoding", "connection", "accept-encoding", "content-encoding")


class Recorder:
    def __init__(self, upstream: str, file: Path, lost: frozenset[int] = frozenset()) -> None:
        self._upstream, self.file, self._lost = upstream, file, lost
        self._arrived = count()
        self.under_way = 0

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.under_way += 1
        try:
            return await self._handle(request)
        finally:
            self.under_way -= 1

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        number = next(self._arrived)
        body = await request.read()
        headers = {name: value for name, value in request.headers.items() if name.lower() not in _HOP}
        url = self._upstream + request.path_qs
        timeout = aiohttp.ClientTimeout(total=600)
        async with (
            aiohttp.ClientSession(timeout=timeout, auto_decompress=False) as session,
            session.request(request.method, url, headers=headers, data=body) as answer,
        ):
            if number in self._lost:
                await self._record(number, request, body, answer, await answer.read())
                return web.Response(status=502)
            passed = {name: value for name, value in answer.headers.items() if name.lower() not in _HOP}
            response = web.StreamResponse(status=answer.status, headers=passed)
            await response.prepare(request)
            read = b""
            async for chunk in answer.content.iter_any():
                read += chunk
                await response.write(chunk)
            await response.write_eof()
            if request.method == "POST":
                await self._record(number, request, body, answer, read)
        return response

    async def _record(
        self, number: int, request: web.Request, body: bytes, answer: aiohttp.ClientResponse, read: bytes
    ) -> None:
        inference_id = answer.headers.get("x-onward-inference-id")
        line: dict[str, Any] = {
            "number": number,
            "path": request.path,
            "headers": _kept(request),
            "body": json.loads(body or b"null"),
            "status": answer.status,
        }
        if inference_id:
            line["answer"] = await self._turn(inference_id)
        else:
            line["refused"] = read.decode(errors="replace")[:2000]
        with self.file.open("a") as file:
            file.write(json.dumps(line, ensure_ascii=False) + "\n")

    async def _turn(self, inference_id: str) -> Any:
        """Return the turn from the service, which has it a moment after the answer's last byte."""
        url = f"{self._upstream}/v1/turns/{inference_id}"
        async with aiohttp.ClientSession() as session:
            deadline_s = time.monotonic() + _STORED_S
            while time.monotonic() < deadline_s:
                async with session.get(url) as found:
                    if found.status == 200:
                        turn = await found.json()
                        return {name: turn.get(name) for name in NAMES}
                await asyncio.sleep(0.02)
        raise TimeoutError(inference_id)


NAMES = (
    "inference_id", "session_id", "parent_id", "turn_index", "purpose", "text", "tool_calls", "finish_reason",
    "trainable", "untrainable_reasons",
)  # fmt: skip


def _kept(request: web.Request) -> dict[str, str]:
    named = ((name.lower(), value) for name, value in request.headers.items())
    return {
        name: value
        for name, value in named
        if any(each in name for each in KEPT_HEADERS)
        and not name.startswith(_DROPPED)
        and (name == _RETRY or not name.startswith("x-stainless"))
    }


def make_app(recorder: Recorder) -> web.Application:
    app = web.Application(client_max_size=64 << 20)
    app.router.add_route("*", "/{tail:.*}", recorder.handle)
    return app


class Recording:
    """A recorder at work on a thread, at `url`."""

    def __init__(self, recorder: Recorder, url: str) -> None:
        self._recorder, self.url = recorder, url

    def start(self, file: Path) -> None:
        """Record into another file from now on."""
        file.touch()
        self._recorder.file = file

    def turns(self) -> list[dict[str, Any]]:
        """Return the requests that were answered, in the order in which they came, once none is under way."""
        waited = threading.Event()
        while self._recorder.under_way:
            waited.wait(0.02)
        lines = [json.loads(line) for line in self._recorder.file.read_text().splitlines()]
        return sorted((line for line in lines if "answer" in line), key=lambda line: line["number"])


@contextmanager
def recording(upstream: str) -> Iterator[Recording]:
    """Run a recorder on a free port."""
    recorder = Recorder(upstream, Path())
    loop, stop = asyncio.new_event_loop(), asyncio.Event()
    urls: Queue[str] = Queue()

    async def work() -> None:
        runner = web.AppRunner(make_app(recorder))
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        urls.put(f"http://127.0.0.1:{runner.addresses[0][1]}")
        await stop.wait()
        await runner.cleanup()

    thread = threading.Thread(target=lambda: loop.run_until_complete(work()), daemon=True)
    thread.start()
    try:
        yield Recording(recorder, urls.get())
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join()
        loop.close()


if __name__ == "__main__":
    port, upstream, file, *lost = sys.argv[1:]
    web.run_app(
        make_app(Recorder(upstream, Path(file), frozenset(map(int, lost)))),
        host="127.0.0.1",
        port=int(port),
        print=None,
    )
