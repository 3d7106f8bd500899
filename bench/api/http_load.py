"""A load generator that costs little: keep-alive connections over httptools.

    python -m bench http_load PORT[,PORT] CLIENTS SECONDS PATH [stream]

Each connection sends its next request when the answer to the last one is whole; several ports share them. It
prints one JSON object: requests (all of them), requests_per_s, p50_ms, p99_ms, bytes."""

import asyncio
import json
import statistics
import sys
import time
from typing import cast

import httptools
import uvloop

from bench.api.api_servers import MODEL

WARM_UP_S = 1.0
PROMPT = "Write total(prices): the sum of all prices that are positive. " * 6


class Client(asyncio.Protocol):
    """One connection."""

    def __init__(self, request: bytes, latencies_s: list[float]) -> None:
        self._request = request
        self._latencies_s = latencies_s
        self.bytes = 0
        self.stopping = False
        self.ended = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._send()

    def _send(self) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self._started_s = time.perf_counter()
        self._transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        self.bytes += len(data)
        self._parser.feed_data(data)

    def on_message_complete(self) -> None:
        if self._parser.get_status_code() != 200:
            self.ended.set_exception(RuntimeError(f"status {self._parser.get_status_code()}"))
            self._transport.close()
            return
        self._latencies_s.append(time.perf_counter() - self._started_s)
        if self.stopping:
            self._transport.close()
        else:
            asyncio.get_running_loop().call_soon(self._send)

    def connection_lost(self, error: Exception | None) -> None:
        if not self.ended.done():
            self.ended.set_result(None)


CHAT = "/v1/chat/completions"
BODIES: dict[str, dict[str, object]] = {
    CHAT: {"messages": [{"role": "user", "content": PROMPT}]},
    "/v1/completions": {"prompt": PROMPT},
    "/v1/responses": {"input": [{"role": "user", "content": PROMPT}]},
    "/v1/messages": {"messages": [{"role": "user", "content": PROMPT}], "max_tokens": 64},
    "/v1/fim/completions": {"prompt": PROMPT},
    "/infill": {"input_prefix": PROMPT, "input_suffix": ""},
}
"""The same question in the words of each route."""


def request_bytes(path: str, stream: bool) -> bytes:
    body = json.dumps({"model": MODEL, "stream": stream, **BODIES[path]}).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    head += f"Authorization: Bearer sk-bench\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


async def load(ports: list[int], clients: int, seconds: float, path: str, stream: bool) -> dict[str, float]:
    latencies_s: list[float] = []
    request, loop = request_bytes(path, stream), asyncio.get_running_loop()
    connections = []
    for number in range(clients):
        port = ports[number % len(ports)]
        _, client = await loop.create_connection(lambda: Client(request, latencies_s), "127.0.0.1", port)
        connections.append(client)
    await asyncio.sleep(WARM_UP_S)
    warmed_up = len(latencies_s)
    latencies_s.clear()
    started_s = time.perf_counter()
    await asyncio.sleep(seconds)
    elapsed_s, done = time.perf_counter() - started_s, sorted(latencies_s)
    for client in connections:
        client.stopping = True
    await asyncio.wait_for(asyncio.gather(*(client.ended for client in connections)), 30)
    total = warmed_up + len(latencies_s)
    return {
        "requests": total,
        "requests_per_s": len(done) / elapsed_s,
        "p50_ms": statistics.median(done) * 1000,
        "p99_ms": done[int(len(done) * 0.99)] * 1000,
        "bytes": sum(client.bytes for client in connections),
    }


if __name__ == "__main__":
    uvloop.install()
    among, clients, seconds, path, *stream = sys.argv[1:]
    ports = [int(port) for port in among.split(",")]
    result = asyncio.run(load(ports, int(clients), float(seconds), path, stream == ["stream"]))
    print(json.dumps(result))
