"""The contract of the Policy port, run over the engine within the process and over fleets of servers."""

import asyncio
import inspect
import json
import math
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import cast

import made_events
import msgspec
import pytest
from engine_world import Published
from first_process import listening
from fleet_world import PATIENT, Fleet, sglang_fleet
from http_engine import HttpEngine, HttpEngines
from moe_model import make_moe
from sglang_server import PYTHON, SglangServer
from token_server import token_server

from core.beside.line import Line
from core.blobs import FsspecBlobs
from core.errors import EngineUnavailable, InvalidRequest
from core.events import Grammar, LogprobSpace, Sampling
from core.grammars.library import grammars_of
from core.ids import InferenceId, base_ref
from core.ports import GenerateRequest, Policy, TokenChunk
from core.settings import LocalEngineSettings, ServingSettings, SglangSettings
from learner.model.policy_model import PolicyModel
from learner.sequences.joining import TrainingSequence, TurnSpan
from learner.sequences.scored import ScoredTurn
from learner.sequences.tensors import micro_batches
from serving.engines.beside.answers import answer_for
from serving.engines.beside.policy import BesidePolicy
from serving.engines.local import LocalEngine
from serving.engines.model_facts import read_model_facts
from serving.engines.sglang.engine import SglangEngine
from serving.rendering import load_renderer
from serving.weights.published import BlobWeights

pytestmark = pytest.mark.timeout(900)  # servers start within, on whatever machine
MODEL = Path(__file__).resolve().parents[3] / "models" / "tiny"
PROMPT = tuple(range(250, 280))
SPACES = {"whitespace_pattern": "[ \\n]{0,2}"}
Ask = Callable[[GenerateRequest], list[TokenChunk]]


@contextmanager
def local(directory: Path) -> Iterator[Policy]:
    weights = BlobWeights(FsspecBlobs(directory / "blobs"))
    anchor = weights.publish(base_ref(1), [MODEL / "model.safetensors"], None)
    engine = LocalEngine(ServingSettings(local=LocalEngineSettings(slots=4)), MODEL, weights, anchor)
    engine.start()
    yield engine
    engine.close()


@contextmanager
def beside(directory: Path) -> Iterator[Policy]:
    """Yield the policy of a process beside the engine's, whose event loop is another."""
    path = directory / "line.sock"
    with (
        local(directory) as engine,
        listening(lambda listener: answer_for(listener, engine, lambda: "ok", grammars_of(MODEL)), path),
    ):
        yield BesidePolicy(Line(path), path)


@contextmanager
def http(directory: Path) -> Iterator[Policy]:
    with token_server(read_model_facts(MODEL).vocabulary) as url:
        world = Published(directory / "published")
        fleet = Fleet(directory, world, ServingSettings(), HttpEngines())
        fleet.host(HttpEngine("http", url, world.weights, world.blobs, MODEL))
        fleet.wait_until(lambda: fleet.policy.state == "ok")
        yield fleet.policy
        fleet.close()


@contextmanager
def dense_sglang(directory: Path, server: SglangServer) -> Iterator[Policy]:
    """Yield a fleet of one server, which runs already, whatever weights it has by now."""
    world = Published(directory / "published")
    settings = ServingSettings(sglang=SglangSettings(python=PYTHON), fleet=PATIENT)
    with closing(Fleet(directory, world, settings)) as fleet:
        own = directory / "host"
        fleet.host(SglangEngine("one", settings.sglang, world.weights, world.blobs, MODEL, own, url=server.url))
        fleet.wait_until(lambda: any(replica.answers(None) for replica in fleet.view.snapshot.replicas))
        yield fleet.policy


@contextmanager
def moe_sglang(directory: Path) -> Iterator[Policy]:
    with sglang_fleet(directory, model=make_moe(directory / "moe")) as fleet:
        yield fleet.policy


KINDS = {"local": local, "beside": beside, "http": http, "sglang": dense_sglang, "sglang-moe": moe_sglang}


@pytest.fixture(params=KINDS, scope="module")
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def policy(kind: str, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[Policy]:
    make: Callable[..., contextmanager[Policy]] = KINDS[kind]  # type: ignore[type-arg]
    servers = [request.getfixturevalue("tiny_sglang")] if kind == "sglang" else []
    with make(tmp_path_factory.mktemp("policy"), *servers) as made:
        yield made


@pytest.fixture(scope="module")
def runner(policy: Policy) -> Iterator[asyncio.Runner]:
    """Yield the one event loop that a policy lives on."""
    with asyncio.Runner() as made:
        yield made
        if hasattr(policy, "aclose"):
            made.run(policy.aclose())


@pytest.fixture(scope="module")
def ask(policy: Policy, runner: asyncio.Runner) -> Ask:
    async def collect(request: GenerateRequest) -> list[TokenChunk]:
        return [chunk async for chunk in policy.generate(request)]

    return lambda request: runner.run(collect(request))


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


def tokens_of(chunks: list[TokenChunk]) -> list[int]:
    return [token for chunk in chunks for token in chunk.token_ids]


def test_generate_is_an_async_generator_that_can_be_closed(policy: Policy) -> None:
    assert inspect.isasyncgen(policy.generate(asking()))


def test_every_token_has_a_logprob_and_every_chunk_a_version(ask: Ask, policy: Policy) -> None:
    chunks = ask(asking(max_tokens=20, seed=1))
    assert len(tokens_of(chunks)) == 20
    for chunk in chunks:
        assert len(chunk.token_ids) == len(chunk.logprobs)
        assert all(math.isfinite(logprob) and logprob <= 0 for logprob in chunk.logprobs)
        assert chunk.version == policy.live_version


def test_only_the_last_chunk_has_a_finish_reason_and_only_the_first_tells_the_cache(ask: Ask) -> None:
    chunks = ask(asking(max_tokens=20, seed=1))
    assert [chunk.finish_reason for chunk in chunks] == [None] * (len(chunks) - 1) + ["length"]
    assert chunks[0].cached_tokens is not None
    assert all(chunk.cached_tokens is None for chunk in chunks[1:])


def test_a_prefix_is_found_within_its_scope_alone(ask: Ask, kind: str) -> None:
    asked = [msgspec.structs.replace(asking(), cache_scope=scope) for scope in ("ada", "bob", "ada", "bob")]
    *first, ada, bob = (ask(each)[0].cached_tokens for each in asked)
    assert first == [0, 0]
    assert ada == bob
    assert ada or kind == "http", "which has no such cache"


def test_tokens_come_as_they_are_sampled(ask: Ask) -> None:
    assert len(ask(asking(max_tokens=100))) > 5


def test_a_seed_repeats_the_answer(ask: Ask, kind: str) -> None:
    if kind.startswith("sglang"):
        pytest.skip("SGLang obeys seeds under --enable-deterministic-inference alone, which has no backend for a CPU")
    first, second = (tokens_of(ask(asking(max_tokens=12, seed=5))) for _ in range(2))
    assert first == second


def test_a_stop_token_is_the_last_of_the_answer(ask: Ask) -> None:
    greedy = tokens_of(ask(asking(max_tokens=12, temperature=0.0)))
    last = next(token for token in reversed(greedy) if greedy.count(token) == 1 or token == greedy[3])
    chunks = ask(asking(max_tokens=12, temperature=0.0, stop=(last,)))
    assert tokens_of(chunks) == greedy[: greedy.index(last) + 1]
    assert chunks[-1].finish_reason == "stop"


def test_top_logprobs_accompany_every_token(ask: Ask) -> None:
    chunks = ask(asking(max_tokens=5, temperature=0.0, top=4))
    for chunk in chunks:
        assert len(chunk.top_logprobs) == len(chunk.token_ids)
        for token, logprob, top in zip(chunk.token_ids, chunk.logprobs, chunk.top_logprobs, strict=True):
            assert len(top) == 4
            assert top[0] == (token, pytest.approx(logprob, rel=1e-6, abs=1e-6))


@pytest.mark.parametrize(
    ("request_", "param"),
    [
        (asking(()), "prompt_token_ids"),
        (asking((10**9,)), "prompt_token_ids"),
        (asking(max_tokens=0), "max_tokens"),
        (asking(max_tokens=10**9), "max_tokens"),
        (asking(temperature=-1.0), "temperature"),
        (asking(seed=1 << 70), "seed"),
        (asking(logit_bias={1 << 70: 1.0}), "logit_bias"),
    ],
)
def test_what_the_model_cannot_do_is_refused_by_name(ask: Ask, request_: GenerateRequest, param: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        ask(request_)
    assert refused.value.param == param


def test_a_prompt_that_fills_the_context_is_refused(ask: Ask, policy: Policy) -> None:
    with pytest.raises(InvalidRequest) as refused:
        ask(asking((10,) * policy.context_length, max_tokens=1))
    assert (refused.value.param, refused.value.code) == ("prompt_token_ids", "context_length_exceeded")


def test_an_unknown_version_is_unavailable(ask: Ask) -> None:
    request = GenerateRequest(
        inference_id=InferenceId("0"),
        prompt_token_ids=PROMPT,
        sampling=Sampling(),
        stop_token_ids=(),
        version=base_ref(99),
    )
    with pytest.raises(EngineUnavailable, match="99"):
        ask(request)


def test_closing_the_iterator_aborts_and_leaves_room(policy: Policy, runner: asyncio.Runner) -> None:
    async def run() -> None:
        for _ in range(12):
            stream = cast("AsyncGenerator[TokenChunk, None]", policy.generate(asking(max_tokens=400)))
            await anext(stream)
            await stream.aclose()
        async with asyncio.timeout(120):
            async for _ in policy.generate(asking(max_tokens=2)):
                pass

    runner.run(run())


def test_an_answer_follows_its_grammar_and_the_learner_makes_its_masks_again(ask: Ask, kind: str) -> None:
    if kind in ("http", "sglang-moe"):
        pytest.skip("its servers answer at random, or its routing is not the learner's")
    schema = {"type": "object", "properties": {"a": {"enum": ["x", "yes"]}}, "required": ["a"], "x-guidance": SPACES}
    grammar = Grammar(text=f"%llguidance {{}}\nstart: %json {json.dumps(schema | {'additionalProperties': False})}")
    renderer, policy = load_renderer(MODEL), PolicyModel(MODEL, "cpu")
    for temperature in (1.0, 0.7):
        sampling = {"max_tokens": 40, "temperature": temperature, "grammar": grammar}
        request = asking(stop=renderer.stop_token_ids, top=3, **sampling)
        chunks = ask(request)
        token_ids = tokens_of(chunks)
        text = b"".join(map(renderer.token_bytes, token_ids[:-1])).decode()
        assert json.loads(text)["a"] in ("x", "yes")
        assert chunks[-1].finish_reason == "stop"
        assert all(chunk.untrainable_reasons == () for chunk in chunks)
        turn = made_events.completion(
            prompt_token_ids=PROMPT,
            token_ids=tuple(token_ids),
            sampling=request.sampling,
            logprobs=tuple(logprob for chunk in chunks for logprob in chunk.logprobs),
            logprob_space=LogprobSpace(temperature=temperature, grammar=chunks[-1].grammar),
            segments=(),
        )
        whole = TrainingSequence(PROMPT + turn.token_ids, (TurnSpan(0, len(PROMPT), len(PROMPT + turn.token_ids)),))
        (part,) = micro_batches(
            [whole], [ScoredTurn(turn, made_events.reward(turn.inference_id))], 4096, "cpu", masks=policy.masks
        )
        logprobs_N, _ = policy.score(policy.hidden_states(part), part)
        # Two implementations in float32, each over sums of some hundred terms: a few ulps of logits of about ten.
        assert float((logprobs_N.detach() - part.behaviour_N).abs().max()) < 1e-4


def test_plain_sampling_is_trainable_and_greedy_is_not(policy: Policy, kind: str) -> None:
    assert policy.untrainable(Sampling(temperature=0.7, seed=3)) == ()
    assert "temperature_zero" in policy.untrainable(Sampling(temperature=0.0))
    assert ("top_p" in policy.untrainable(Sampling(top_p=0.5))) == (
        kind not in ("local", "beside")
    )  # which tells what was left
