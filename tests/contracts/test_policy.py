"""The contract of the Policy port, run over every adapter."""

import asyncio
import inspect
import math
from collections.abc import AsyncGenerator, Callable, Iterator
from pathlib import Path
from typing import cast

import pytest

from core.blobs import FsspecBlobs
from core.errors import EngineUnavailable, InvalidRequest
from core.events import Sampling
from core.ids import InferenceId, Version
from core.ports import GenerateRequest, Policy, TokenChunk
from core.settings import ServingSettings
from serving.local import LocalEngine
from serving.weights import BlobWeights

MODEL = Path(__file__).resolve().parents[2] / "models" / "tiny"
PROMPT = tuple(range(10, 40))


def local(directory: Path) -> tuple[Policy, Callable[[], None]]:
    weights = BlobWeights(FsspecBlobs(directory / "blobs"))
    anchor = weights.publish(Version(1), [MODEL / "model.safetensors"], None)
    engine = LocalEngine(ServingSettings(slots=4), MODEL, weights, anchor)
    engine.start()
    return engine, engine.close


@pytest.fixture(params=[local], scope="module")
def policy(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Policy]:
    made, close = request.param(tmp_path_factory.mktemp("policy"))
    yield made
    close()


def asking(
    prompt: tuple[int, ...] = PROMPT, *, stop: tuple[int, ...] = (), top: int = 0, **sampling: object
) -> GenerateRequest:
    return GenerateRequest(
        inference_id=InferenceId("0"),
        prompt_token_ids=prompt,
        sampling=Sampling(**sampling),  # type: ignore[arg-type]
        stop_token_ids=stop,
        top_logprobs=top,
    )


def chunks_of(policy: Policy, request: GenerateRequest) -> list[TokenChunk]:
    async def run() -> list[TokenChunk]:
        return [chunk async for chunk in policy.generate(request)]

    return asyncio.run(run())


def tokens_of(chunks: list[TokenChunk]) -> list[int]:
    return [token for chunk in chunks for token in chunk.token_ids]


def test_generate_is_an_async_generator_that_can_be_closed(policy: Policy) -> None:
    assert inspect.isasyncgen(policy.generate(asking()))


def test_every_token_has_a_logprob_and_every_chunk_a_version(policy: Policy) -> None:
    chunks = chunks_of(policy, asking(max_tokens=20, seed=1))
    assert len(tokens_of(chunks)) == 20
    for chunk in chunks:
        assert len(chunk.token_ids) == len(chunk.logprobs)
        assert all(math.isfinite(logprob) and logprob <= 0 for logprob in chunk.logprobs)
        assert chunk.version == policy.live_version


def test_only_the_last_chunk_has_a_finish_reason_and_only_the_first_tells_the_cache(policy: Policy) -> None:
    chunks = chunks_of(policy, asking(max_tokens=20, seed=1))
    assert [chunk.finish_reason for chunk in chunks] == [None] * (len(chunks) - 1) + ["length"]
    assert chunks[0].cached_tokens is not None
    assert all(chunk.cached_tokens is None for chunk in chunks[1:])


def test_tokens_come_as_they_are_sampled(policy: Policy) -> None:
    assert len(chunks_of(policy, asking(max_tokens=100))) > 5


def test_a_seed_repeats_the_answer(policy: Policy) -> None:
    first, second = (tokens_of(chunks_of(policy, asking(max_tokens=12, seed=5))) for _ in range(2))
    assert first == second


def test_a_stop_token_is_the_last_of_the_answer(policy: Policy) -> None:
    greedy = tokens_of(chunks_of(policy, asking(max_tokens=12, temperature=0.0)))
    chunks = chunks_of(policy, asking(max_tokens=12, temperature=0.0, stop=(greedy[3],)))
    assert tokens_of(chunks) == greedy[: greedy.index(greedy[3]) + 1]
    assert chunks[-1].finish_reason == "stop"


def test_top_logprobs_accompany_every_token(policy: Policy) -> None:
    chunks = chunks_of(policy, asking(max_tokens=5, temperature=0.0, top=4))
    for chunk in chunks:
        assert len(chunk.top_logprobs) == len(chunk.token_ids)
        for token, logprob, top in zip(chunk.token_ids, chunk.logprobs, chunk.top_logprobs, strict=True):
            assert len(top) == 4
            assert top[0] == (token, pytest.approx(logprob, abs=1e-6))


@pytest.mark.parametrize(
    ("request_", "param"),
    [
        (asking(()), "prompt_token_ids"),
        (asking((10**9,)), "prompt_token_ids"),
        (asking(max_tokens=0), "max_tokens"),
        (asking(max_tokens=10**9), "max_tokens"),
        (asking(temperature=-1.0), "temperature"),
    ],
)
def test_what_the_model_cannot_do_is_refused_by_name(policy: Policy, request_: GenerateRequest, param: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        chunks_of(policy, request_)
    assert refused.value.param == param


def test_a_prompt_that_fills_the_context_is_refused(policy: Policy) -> None:
    with pytest.raises(InvalidRequest) as refused:
        chunks_of(policy, asking((10,) * policy.context_length, max_tokens=1))
    assert (refused.value.param, refused.value.code) == ("prompt_token_ids", "context_length_exceeded")


def test_an_unknown_version_is_unavailable(policy: Policy) -> None:
    request = GenerateRequest(
        inference_id=InferenceId("0"),
        prompt_token_ids=PROMPT,
        sampling=Sampling(),
        stop_token_ids=(),
        version=Version(99),
    )
    with pytest.raises(EngineUnavailable, match="99"):
        chunks_of(policy, request)


def test_closing_the_iterator_aborts_and_leaves_room(policy: Policy) -> None:
    async def run() -> None:
        for _ in range(12):
            stream = cast("AsyncGenerator[TokenChunk, None]", policy.generate(asking(max_tokens=400)))
            await anext(stream)
            await stream.aclose()
        async with asyncio.timeout(10):
            async for _ in policy.generate(asking(max_tokens=2)):
                pass

    asyncio.run(run())


def test_plain_sampling_is_trainable_and_greedy_is_not(policy: Policy) -> None:
    assert policy.untrainable(Sampling(temperature=0.7, seed=3)) == ()
    assert "temperature_zero" in policy.untrainable(Sampling(temperature=0.0))
    assert "top_p" in policy.untrainable(Sampling(top_p=0.5))
