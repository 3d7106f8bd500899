"""A `Policy` that answers as the test scripts it: chunk by chunk, with logprobs and versions."""

import asyncio
import threading
from collections import deque
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field

from byte_renderer import END, ids

from core.errors import EngineUnavailable, InvalidRequest
from core.events import FinishReason, Sampling
from core.ids import BASE, PolicyName, PolicyRef, base_ref
from core.ports import GenerateRequest, TokenChunk


def logprob_of(place: int) -> float:
    """Return a float32 value that identifies its position."""
    return -(place + 1) / 64


@dataclass
class Script:
    """One answer; it waits for `gate` after the first chunk, and raises instead of chunk `fails_at`."""

    token_ids: Sequence[int]
    chunk_tokens: int = 1
    finish: FinishReason = "stop"
    versions: Sequence[int] = ()
    gate: threading.Event | None = None
    fails_at: int | None = None
    without_logprobs: bool = False
    error: Exception = field(default_factory=lambda: EngineUnavailable("the engine is gone"))


def says(text: str, **options: object) -> Script:
    return Script((*ids(text), END), **options)  # type: ignore[arg-type]


class ScriptedPolicy:
    """A policy that answers from `scripts` in order, and with `default` when none is left."""

    context_length = 2000

    def __init__(self) -> None:
        self.live_version = base_ref(1)
        self.scripts: deque[Script] = deque()
        self.default = says("hello")
        self.requests: list[GenerateRequest] = []
        self.closed = threading.Event()  # a request was given up
        self.running = 0

    def live_of(self, policy: PolicyName) -> PolicyRef:
        return self.live_version if policy == BASE else PolicyRef(policy, self.live_version.version)

    def untrainable(self, sampling: Sampling) -> tuple[str, ...]:
        reasons = []
        if sampling.temperature == 0:
            reasons.append("temperature_zero")
        if sampling.top_p < 1:
            reasons.append("top_p")
        return tuple(reasons)

    async def generate(self, request: GenerateRequest) -> AsyncIterator[TokenChunk]:
        if request.sampling.top_k is not None:
            raise InvalidRequest("top_k: this model has none", param="top_k")
        self.requests.append(request)
        script = self.scripts.popleft() if self.scripts else self.default
        self.running += 1
        whole = False
        try:
            async for chunk in self._chunks(script, request):
                yield chunk
            whole = True
        finally:
            self.running -= 1
            if not whole:
                self.closed.set()

    async def _chunks(self, script: Script, request: GenerateRequest) -> AsyncIterator[TokenChunk]:
        tokens = list(script.token_ids)[: request.sampling.max_tokens]
        finish = script.finish if len(tokens) == len(script.token_ids) else "length"
        starts = list(range(0, len(tokens), script.chunk_tokens))
        for number, start in enumerate(starts):
            if number and script.gate is not None:
                await _opened(script.gate)
            if number == script.fails_at:
                raise script.error
            part = tokens[start : start + script.chunk_tokens]
            logprobs = tuple(logprob_of(start + offset) for offset in range(len(part)))
            tops = tuple(
                tuple((token + other, logprob - other) for other in range(request.top_logprobs))
                for token, logprob in zip(part, logprobs, strict=True)
            )
            yield TokenChunk(
                token_ids=tuple(part),
                logprobs=() if script.without_logprobs else logprobs,
                version=base_ref(script.versions[number]) if script.versions else self.live_of(request.policy),
                top_logprobs=tops if request.top_logprobs else (),
                finish_reason=finish if start == starts[-1] else None,
                replica="scripted",
                cached_tokens=3 if number == 0 else None,
            )
            await asyncio.sleep(0)


async def _opened(gate: threading.Event) -> None:
    while not gate.is_set():  # noqa: ASYNC110 - opened by the test's own thread
        await asyncio.sleep(0.002)
