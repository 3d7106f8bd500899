"""A small HTTP server with OpenAI's completions over token ids: the same question has the same answer.

`GET /v1/models` tells the version and the digest that it serves, `POST /weights` sets both."""

import json
import math
import random
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

_CHOICES = 8  # tokens that are equally likely in each place


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    vocabulary: int
    version = digest = ""


class _Handler(BaseHTTPRequestHandler):
    server: _Server

    def do_GET(self) -> None:
        self._say({"object": "list", "data": [{"id": self.server.version, "digest": self.server.digest}]})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path == "/weights":
            self.server.version, self.server.digest = body["version"], body["digest"]
            self._say({})
        elif not body["prompt"] or body["max_tokens"] < 1:
            self.send_error(400, "an empty prompt, or no tokens wanted")
        else:
            with suppress(ConnectionError):  # the client hung up: that ends the answer
                self._answer(body)

    def _answer(self, body: dict[str, Any]) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        for place, choice in enumerate(_choices(body, self.server.vocabulary)):
            event = {"model": self.server.version, "choices": [choice], **({"cached_tokens": 0} if not place else {})}
            self.wfile.write(b"data: " + json.dumps(event).encode() + b"\n\n")
        self.wfile.write(b"data: [DONE]\n\n")

    def _say(self, answer: object) -> None:
        content = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:
        pass


def _choices(body: dict[str, Any], vocabulary: int) -> Iterator[dict[str, Any]]:
    chance = random.Random(f"{body['prompt']} {body['seed']}")
    for place in range(body["max_tokens"]):
        likely = chance.sample(range(vocabulary), _CHOICES)
        token, is_last = likely[0], place == body["max_tokens"] - 1
        logprob = -math.log(_CHOICES)
        finish = "stop" if token in body["stop_token_ids"] else "length" if is_last else None
        top = [[[other, logprob] for other in likely[: body["logprobs"]]]]
        yield {
            "token_ids": [token],
            "logprobs": {"token_logprobs": [logprob], "top_logprobs": top},
            "finish_reason": finish,
        }
        if finish is not None:
            return


@contextmanager
def token_server(vocabulary: int) -> Iterator[str]:
    """Run a server; yield its address."""
    server = _Server(("127.0.0.1", 0), _Handler)
    server.vocabulary = vocabulary
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
