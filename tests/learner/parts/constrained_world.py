"""Turns that the shipped model really answered under a grammar, as the engine tells them."""

import asyncio
import json
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from logged_world import MODEL, make_turn
from tiny_engine import tiny_engine

from core.events import Completion, Grammar, LogprobSpace, Sampling
from core.grammars import sets
from core.ids import InferenceId
from core.ports import GenerateRequest, TokenChunk
from serving.engines.local import LocalEngine
from serving.rendering import load_renderer

SCHEMA = {
    "type": "object",
    "properties": {"mood": {"enum": ["glad", "sad"]}, "count": {"enum": [1, 2, 3]}},
    "required": ["mood", "count"],
    "additionalProperties": False,
    "x-guidance": {"whitespace_flexible": False},
}
GRAMMAR = Grammar(text=f"%llguidance {{}}\nstart: %json {json.dumps(SCHEMA)}\n")


@lru_cache
def constrained_turns(count: int, **sampling: Any) -> tuple[Completion, ...]:
    """Return turns to one prompt under GRAMMAR, or with other `sampling`."""
    renderer = load_renderer(MODEL)
    prompt = renderer.render([{"role": "user", "content": "how are you"}], [])
    asked = {"max_tokens": 40, "grammar": GRAMMAR, **sampling}
    requests = [
        GenerateRequest(
            inference_id=InferenceId(str(seed)),
            prompt_token_ids=prompt,
            sampling=Sampling(seed=seed, **asked),
            stop_token_ids=renderer.stop_token_ids,
        )
        for seed in range(count)
    ]
    with TemporaryDirectory() as directory, tiny_engine(Path(directory)) as engine:
        answers = asyncio.run(_answers(engine, requests))
    return tuple(
        _turn(number, request, chunks) for number, (request, chunks) in enumerate(zip(requests, answers, strict=True))
    )


async def _answers(engine: LocalEngine, requests: list[GenerateRequest]) -> list[list[TokenChunk]]:
    async def one(request: GenerateRequest) -> list[TokenChunk]:
        return [chunk async for chunk in engine.generate(request)]

    return await asyncio.gather(*map(one, requests))


def _turn(number: int, request: GenerateRequest, chunks: list[TokenChunk]) -> Completion:
    token_ids = tuple(token for chunk in chunks for token in chunk.token_ids)
    allowed = [ids for chunk in chunks for ids in chunk.allowed]
    return make_turn(
        number,
        prompt_token_ids=request.prompt_token_ids,
        token_ids=token_ids,
        logprobs=tuple(logprob for chunk in chunks for logprob in chunk.logprobs),
        sampling=request.sampling,
        logprob_space=LogprobSpace(
            temperature=request.sampling.temperature,
            mask=sets.ATTACHMENT if allowed else None,
            grammar=chunks[-1].grammar,
        ),
        attachments={sets.ATTACHMENT: sets.pack(allowed)} if allowed else {},
        text=said(token_ids),
    )


def said(token_ids: tuple[int, ...]) -> str:
    renderer = load_renderer(MODEL)
    stops = renderer.stop_token_ids
    return b"".join(renderer.token_bytes(token) for token in token_ids if token not in stops).decode()
