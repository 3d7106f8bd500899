"""Streaming clients that cost little and note when tokens arrive: keep-alive connections over httptools.

    python -m bench stream_load TARGET CLIENTS        until its standard input ends

TARGET is JSON: port, path, body. Each connection sends its next request when the answer to the last one is whole. A
line is printed after a second, to warm up, and at the end one JSON list of all answers that had tokens: [when it was
asked, [when tokens arrived, ...]] on the system's monotonic clock. Events that arrive in one piece are one arrival."""

import asyncio
import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any, cast

import httptools
import uvloop

WARM_UP_S = 1.0
_LAST_WORD_S = 60.0
_TOKENS = re.compile(rb'"output_ids":\s?\[\d|"content":\s?"[^"]')  # of /generate, of /v1/chat/completions
_ERROR = re.compile(rb'"error":\s?\{')


@dataclass(frozen=True)
class Target:
    port: int
    path: str
    body: Mapping[str, Any]


@dataclass(frozen=True)
class StreamedAnswer:
    asked_s: float
    arrivals_s: list[float]

    @property
    def first_token_ms(self) -> float:
        return (self.arrivals_s[0] - self.asked_s) * 1000


@contextmanager
def streaming(target: Target, clients: int) -> Iterator[list[StreamedAnswer]]:
    """Stream from here to the end of the block; then the answers are in the list."""
    command = [sys.executable, "-m", "bench.engines.stream_load", json.dumps(asdict(target)), str(clients)]
    answers: list[StreamedAnswer] = []
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        if not child.stdout.readline():
            raise SystemExit(f"{target.path} at port {target.port} gave no answers")
        try:
            yield answers
        finally:
            output, _ = child.communicate()
    if child.returncode:
        raise SystemExit(f"clients of {target.path} at port {target.port} ended with {child.returncode}")
    answers += [StreamedAnswer(asked_s, arrivals_s) for asked_s, arrivals_s in json.loads(output)]


class Client(asyncio.Protocol):
    """One connection."""

    def __init__(self, request: bytes) -> None:
        self._request = request
        self.answers: list[StreamedAnswer] = []
        self.stopping = False
        self.ended = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._send()

    def _send(self) -> None:
        self._parser, self._line = httptools.HttpResponseParser(self), b""
        self._answer = StreamedAnswer(time.monotonic(), [])
        self._transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        self._brought_tokens = False
        now_s, answer = time.monotonic(), self._answer
        self._parser.feed_data(data)
        if self._brought_tokens:
            answer.arrivals_s.append(now_s)

    def on_body(self, body: bytes) -> None:
        whole, _, self._line = (self._line + body).rpartition(b"\n")
        if _ERROR.search(whole):
            self._fail(whole.decode(errors="replace"))
        self._brought_tokens = self._brought_tokens or bool(_TOKENS.search(whole))

    def on_message_complete(self) -> None:
        if self._parser.get_status_code() != 200:
            self._fail(f"status {self._parser.get_status_code()}")
            return
        self.answers.append(self._answer)
        if self.stopping:
            self._transport.close()
        else:
            asyncio.get_running_loop().call_soon(self._send)

    def _fail(self, why: str) -> None:
        if not self.ended.done():
            self.ended.set_exception(RuntimeError(why))
        self._transport.close()

    def connection_lost(self, error: Exception | None) -> None:
        if not self.ended.done():
            if self.stopping and error is None:
                self.ended.set_result(None)
            else:
                self.ended.set_exception(RuntimeError(f"the server hung up: {error}"))


def request_bytes(target: Target) -> bytes:
    body = json.dumps(target.body).encode()
    head = f"POST {target.path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    return f"{head}Authorization: Bearer sk-bench\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


async def run(target: Target, count: int) -> list[StreamedAnswer]:
    request, loop = request_bytes(target), asyncio.get_running_loop()
    connected = [await loop.create_connection(lambda: Client(request), "127.0.0.1", target.port) for _ in range(count)]
    clients = [client for _, client in connected]
    await asyncio.sleep(WARM_UP_S)
    print("warm", flush=True)
    await loop.run_in_executor(None, sys.stdin.read)
    for client in clients:
        client.stopping = True
    await asyncio.wait_for(asyncio.gather(*(client.ended for client in clients)), _LAST_WORD_S)
    return [answer for client in clients for answer in client.answers if answer.arrivals_s]


if __name__ == "__main__":
    uvloop.install()
    found = asyncio.run(run(Target(**json.loads(sys.argv[1])), int(sys.argv[2])))
    print(json.dumps([[answer.asked_s, answer.arrivals_s] for answer in found]))
