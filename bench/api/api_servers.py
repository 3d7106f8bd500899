"""The servers that `bench.api.api_overhead` compares, each one uvicorn process over the same stub engine.

    python -m bench api_servers onward DIRECTORY
    python -m bench api_servers first DIRECTORY
    python -m bench api_servers beside DIRECTORY
    python -m bench api_servers floor

`first` has the engine and the live state, which `beside` asks for over a socket: the processes of `processes.api = 2`.
Each prints its port once it listens. All run with uvloop, httptools, and the interpreter and its garbage collector set
as in production."""

import gc
import json
import socket
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from pathlib import Path
from typing import Any

import uvicorn
import uvloop
from fastapi import Body, FastAPI
from fastapi.responses import StreamingResponse

from core.errors import InvalidRequest
from core.events import Grammar, Sampling
from core.grammars.wanted import WantedAnswer
from core.ids import InferenceId, base_ref
from core.operations.fleet import LIVE, Assignment
from core.ports import GenerateRequest, LiveState, OutputDelta, Policy, TokenChunk

MODEL = "stub"
TOKENS = 64
CHUNKS = 16  # events of one stream
ANSWER = b"def total(prices: list[int]) -> int: return sum(p for p in x)\n  "
assert len(ANSWER) == TOKENS


class StubPolicy:
    """A policy that answers 64 tokens with logprobs in 16 chunks at once, as after a burst of the engine's thread."""

    live_version = base_ref(1)
    context_length = 100_000

    def __init__(self) -> None:
        size = TOKENS // CHUNKS
        self._chunks = [
            TokenChunk(
                token_ids=tuple(ANSWER[start : start + size]),
                logprobs=tuple(-0.0625 * (start + offset + 1) for offset in range(size)),
                version=self.live_version,
                finish_reason="stop" if start + size == TOKENS else None,
                cached_tokens=0,
            )
            for start in range(0, TOKENS, size)
        ]

    def untrainable(self, _sampling: Sampling) -> tuple[str, ...]:
        return ()

    async def generate(self, _request: GenerateRequest) -> AsyncIterator[TokenChunk]:
        for chunk in self._chunks:
            yield chunk


class StubTraffic:
    """Traffic without an experiment."""

    def assign(self, _unit: str) -> Assignment:
        return LIVE


class ByteRenderer:
    """A tokenizer of bytes: exact, and as cheap as one can be, so that what is measured is the API."""

    name = "bytes"
    tokenizer_digest = "bytes"
    stop_token_ids = (0,)
    tools_refused = None
    late_system_refused = None
    call_grammar_refused = None

    def render(self, messages: Sequence[Mapping[str, Any]], _tools: Sequence[Mapping[str, Any]]) -> tuple[int, ...]:
        text = "\n".join(f"{message['role']}: {message['content']}" for message in messages)
        return tuple(f"{text}\nassistant: ".encode())

    def extend(
        self,
        token_ids: Sequence[int],
        messages: Sequence[Mapping[str, Any]],
        _calls: Sequence[Mapping[str, Any]] = (),
    ) -> tuple[int, ...]:
        return (*token_ids, *self.render(messages, ()))

    def render_text(self, prompt: str, _suffix: str | None) -> tuple[int, ...]:
        return tuple(prompt.encode())

    def parser(self, *, tools: object = None, after: object = ()) -> "ByteParser":
        return ByteParser()

    def answer_tokens(self, text: str, *, is_first: bool) -> tuple[int, ...]:
        return tuple(text.encode())

    def grammar(self, wanted: WantedAnswer, after: Sequence[int], scope: str | None = None) -> Grammar:
        raise InvalidRequest("what is measured asks for no grammar")

    def token_text(self, token_id: int) -> str:
        return self.token_bytes(token_id).decode(errors="replace")

    def token_bytes(self, token_id: int) -> bytes:
        return bytes((token_id,))


class ByteParser:
    def feed(self, token_ids: Sequence[int]) -> OutputDelta:
        return OutputDelta(content=bytes(token_ids).decode())

    def finish(self) -> OutputDelta:
        return OutputDelta()


def onward(directory: Path, live_state: LiveState | None = None, policy: Policy | None = None) -> FastAPI:
    """Make the product's application over the product's log, which nobody reads meanwhile."""
    from api.access.services import ApiServices
    from api.app import create_app
    from api.live_state.memory import MemoryLiveState
    from core.clock import SystemClock
    from core.reward_spec import RewardSpec
    from core.settings import ApiSettings, IngestSettings
    from core.store import open_sqlite
    from ingest.sqlite.log import SqliteEventLog

    ingest = IngestSettings()
    return create_app(
        ApiServices(
            settings=ApiSettings(),
            log=SqliteEventLog(directory / "log.db", ingest.partitions, ingest.poll_s),
            store=open_sqlite(directory / "store.db"),
            live_state=live_state or MemoryLiveState(),
            policy=policy or StubPolicy(),
            renderer=ByteRenderer(),
            spec=RewardSpec.model_validate({"outcomes": {"accepted": {"type": "boolean", "weight": 1}}}),
            clock=SystemClock(),
            model_name=MODEL,
            cluster="local",
            readiness=dict,
            traffic=StubTraffic(),
            readers={},
        )
    )


def first(directory: Path) -> None:
    """Serve as the first of two processes."""
    from api.live_state.beside.answers import answer_for as answer_live_state
    from api.live_state.memory import MemoryLiveState
    from core.beside.listener import Listener
    from core.grammars.library import Grammars
    from serving.engines.beside.answers import answer_for as answer_engine

    directory.mkdir(exist_ok=True)
    live_state, policy, listener = MemoryLiveState(), StubPolicy(), Listener()
    answer_live_state(listener, live_state)
    answer_engine(listener, policy, lambda: "ok", Grammars(directory))
    serve(onward(directory, live_state, policy), listener.listening(directory / "line.sock"))


def beside(directory: Path) -> None:
    """Serve as the second of two processes; the first one serves."""
    from api.live_state.beside.live_state import BesideLiveState
    from core.beside.line import Line
    from serving.engines.beside.policy import BesidePolicy

    path = directory / "line.sock"
    line = Line(path)
    serve(onward(directory, BesideLiveState(line), BesidePolicy(line, path)))


def floor() -> FastAPI:
    """Make the server that anybody would write first: FastAPI, plain dicts in and out, nothing logged."""
    app = FastAPI()
    policy = StubPolicy()
    request = GenerateRequest(
        inference_id=InferenceId("x"), prompt_token_ids=(), sampling=Sampling(), stop_token_ids=(0,)
    )

    @app.post("/v1/chat/completions")
    async def chat(body: dict[str, Any] = Body(...)) -> Any:  # noqa: B008 - FastAPI's way
        head = {"id": "chatcmpl-1", "created": 1, "model": body["model"]}
        if body.get("stream"):
            return StreamingResponse(_events(policy, request, head), media_type="text/event-stream")
        said, tokens = "", 0
        async for chunk in policy.generate(request):
            said += bytes(chunk.token_ids).decode()
            tokens += len(chunk.token_ids)
        message = {"role": "assistant", "content": said}
        usage = {"prompt_tokens": 100, "completion_tokens": tokens, "total_tokens": 100 + tokens}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        return {**head, "object": "chat.completion", "choices": [choice], "usage": usage}

    return app


async def _events(policy: StubPolicy, request: GenerateRequest, head: dict[str, Any]) -> AsyncIterator[str]:
    async for chunk in policy.generate(request):
        delta = {"role": "assistant", "content": bytes(chunk.token_ids).decode()}
        choice = {"index": 0, "delta": delta, "finish_reason": chunk.finish_reason}
        yield f"data: {json.dumps({**head, 'object': 'chat.completion.chunk', 'choices': [choice]})}\n\n"
    yield "data: [DONE]\n\n"


def serve(app: FastAPI, within: AbstractAsyncContextManager[None] | None = None) -> None:
    listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # uvloop leaves it off for sockets it is given
    server = uvicorn.Server(uvicorn.Config(app, loop="uvloop", http="httptools", access_log=False, log_level="warning"))

    sys.setswitchinterval(0.001)

    async def main() -> None:
        gc.collect()
        gc.freeze()
        gc.set_threshold(50_000, 20, 1000)
        async with within or nullcontext():
            print(listener.getsockname()[1], flush=True)
            await server.serve(sockets=[listener])

    uvloop.run(main())  # as the service does; a server that is given a loop takes it as it is


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["first", folder]:
            first(Path(folder))
        case ["beside", folder]:
            beside(Path(folder))
        case ["onward", folder]:
            serve(onward(Path(folder)))
        case _:
            serve(floor())
