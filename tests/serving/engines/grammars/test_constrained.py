"""The engine within the process answers by grammars: any schema, through swaps, cuts and errors."""

import asyncio
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jsonschema
import msgspec
import pytest
import torch
from first_process import listening
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from local_world import Answer, Gate, answer, answers
from safetensors.torch import load_file, save_file
from tiny_engine import TINY, tiny_engine

from core import telemetry
from core.beside.line import Line
from core.blobs import FsspecBlobs
from core.errors import EngineUnavailable, InvalidRequest
from core.events import Grammar, Sampling
from core.grammars.library import Grammars, grammars_of
from core.grammars.masks import Masks
from core.grammars.wanted import WantedAnswer
from core.ids import InferenceId, base_ref
from core.ports import GenerateRequest
from core.settings import LocalEngineSettings
from learner.model.policy_model import PolicyModel
from onward.wiring.engines import BesideServing
from serving.engines.beside.answers import answer_for
from serving.engines.local import LocalEngine
from serving.fleet.constrained import Followed
from serving.rendering import load_renderer
from serving.rendering.formats.grammar import schema_grammar
from serving.weights.published import BlobWeights

WAIT_S = 60.0
RENDERER = load_renderer(TINY)
PROMPT = RENDERER.render([{"role": "user", "content": "say something"}], [])


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalEngine]:
    with tiny_engine(tmp_path_factory.mktemp("tiny")) as engine:
        yield engine


def request(text: str | None, **sampling: Any) -> GenerateRequest:
    grammar = None if text is None else Grammar(text=text)
    return GenerateRequest(
        inference_id=InferenceId("0"),
        prompt_token_ids=PROMPT,
        sampling=Sampling(grammar=grammar, **{"max_tokens": 200, **sampling}),
        stop_token_ids=RENDERER.stop_token_ids,
        top_logprobs=2,
    )


def text_of(given: Answer) -> str:
    stops = RENDERER.stop_token_ids
    return b"".join(RENDERER.token_bytes(token) for token in given.token_ids if token not in stops).decode()


NAMES = st.sampled_from(["a", "b", 'quo"te', "ü", "name"])
LEAVES = st.one_of(
    st.just({"type": "boolean"}),
    st.just({"type": "null"}),
    st.builds(lambda low: {"type": "integer", "minimum": low, "maximum": low + 20}, st.integers(-50, 50)),
    st.builds(
        lambda values: {"enum": values}, st.lists(st.text(max_size=4) | st.integers(-9, 9), min_size=1, unique=True)
    ),
    st.builds(lambda most: {"type": "string", "maxLength": most}, st.integers(0, 6)),
    st.just({"type": "string", "pattern": "^[a-c]{1,4}$"}),
)


def composed(inner: st.SearchStrategy[dict[str, Any]]) -> st.SearchStrategy[dict[str, Any]]:
    objects = st.dictionaries(NAMES, inner, max_size=3).map(
        lambda properties: {
            "type": "object",
            "properties": properties,
            "required": sorted(properties),
            "additionalProperties": False,
        }
    )
    arrays = st.builds(
        lambda items, most: {"type": "array", "items": items, "maxItems": most}, inner, st.integers(0, 3)
    )
    return objects | arrays | st.lists(inner, min_size=1, max_size=3).map(lambda each: {"anyOf": each})


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(schemas=st.lists(st.recursive(LEAVES, composed, max_leaves=5), min_size=1, max_size=4), seed=st.integers(0, 99))
def test_whatever_is_sampled_follows_its_schema(tiny: LocalEngine, schemas: list[dict[str, Any]], seed: int) -> None:
    """Several at once, each by its own grammar, beside one that is free."""
    asked = [request(schema_grammar(schema), seed=seed + place) for place, schema in enumerate(schemas)]
    *given_answers, free = answers(tiny, *asked, request(None, seed=seed, max_tokens=30))
    assert free.chunks[-1].grammar is None
    for schema, given_answer in zip(schemas, given_answers, strict=True):
        if given_answer.finish_reason == "stop":
            jsonschema.validate(json.loads(text_of(given_answer)), schema)
        else:
            assert (given_answer.finish_reason, len(given_answer.token_ids)) == ("length", 200)
        assert all(logprob <= 0 for logprob in given_answer.logprobs)
        for chunk in given_answer.chunks:
            assert all(value > -1e30 for top in chunk.top_logprobs for _, value in top)


def test_a_grammar_changes_nothing_beside_it(tiny: LocalEngine) -> None:
    (alone,) = answers(tiny, request(None, seed=4, max_tokens=30))
    among, _ = answers(tiny, request(None, seed=4, max_tokens=30), request(schema_grammar({"type": "object"}), seed=1))
    assert alone.token_ids == among.token_ids
    assert alone.logprobs == pytest.approx(among.logprobs, abs=5e-5)


def test_a_grammar_goes_on_through_a_swap(tmp_path: Path) -> None:
    """Its masks are a matter of the tokens alone; each token's log-probability is its own version's."""
    weights = BlobWeights(FsspecBlobs(tmp_path / "blobs"))
    tensors = load_file(TINY / "model.safetensors")
    other = tmp_path / "other.safetensors"
    save_file({name: (tensor.float() * 1.02).to(tensor.dtype) for name, tensor in tensors.items()}, other)
    schema = {"type": "array", "items": {"type": "string", "maxLength": 6}, "minItems": 30}
    with tiny_engine(tmp_path / "engine") as engine:
        engine._weights = weights
        engine.load(weights.publish(base_ref(2), [other], None))

        async def run() -> Answer:
            gate = Gate(engine, 20)
            task = asyncio.ensure_future(answer(engine, request(schema_grammar(schema), seed=1)))
            await gate.shut()
            await asyncio.to_thread(engine.switch, base_ref(2))
            gate.open()
            return await task

        given_answer = asyncio.run(run())
    assert set(given_answer.versions) == {1, 2}
    masks = Masks(grammars_of(TINY), Grammar(text=schema_grammar(schema)), RENDERER.stop_token_ids)
    for token in given_answer.token_ids:
        masks.take(token)
    assert masks.record() == given_answer.chunks[-1].grammar
    assert text_of(given_answer).startswith("[")
    for version, files in ((1, TINY / "model.safetensors"), (2, other)):
        assert_scored(given_answer, version, files, schema)


def test_a_grammar_goes_on_after_a_pause(tmp_path: Path) -> None:
    schema = {"type": "array", "items": {"type": "string", "maxLength": 6}, "minItems": 30}
    wanted = msgspec.structs.replace(request(schema_grammar(schema), seed=1), priority="low")
    with tiny_engine(tmp_path, local=LocalEngineSettings(slots=1)) as engine:
        (alone,) = answers(engine, wanted)

        async def run() -> Answer:
            gate, before = Gate(engine, 20), telemetry.PAUSED_REQUESTS._value.get()
            task = asyncio.ensure_future(answer(engine, wanted))
            await gate.shut()
            user = asyncio.ensure_future(answer(engine, request(schema_grammar({"type": "boolean"}), seed=2)))
            await gate.asked(1)
            gate.open()
            await user
            assert telemetry.PAUSED_REQUESTS._value.get() == before + 1
            return await task

        given_answer = asyncio.run(run())
    assert given_answer.token_ids == alone.token_ids
    assert given_answer.logprobs == pytest.approx(alone.logprobs, abs=5e-5)
    assert given_answer.chunks[-1].grammar == alone.chunks[-1].grammar


def assert_scored(given_answer: Answer, version: int, file: Path, schema: dict[str, Any]) -> None:
    policy = PolicyModel(TINY, "cpu", weights=[file])
    ids = [*PROMPT, *given_answer.token_ids]
    with torch.no_grad():
        logits = policy.model(input_ids=torch.tensor([ids])).logits[0, len(PROMPT) - 1 : -1].float()
    masks = Masks(grammars_of(TINY), Grammar(text=schema_grammar(schema)), RENDERER.stop_token_ids)
    for place, token in enumerate(given_answer.token_ids):
        allowed = torch.tensor([(int(masks.next()[v // 32]) >> (v % 32)) & 1 for v in range(512)], dtype=torch.bool)
        if given_answer.versions[place] == version:
            expected = logits[place].where(allowed, -torch.inf).log_softmax(-1)[token]
            assert given_answer.logprobs[place] == pytest.approx(float(expected), abs=1e-4)
        masks.take(token)


def test_one_that_is_too_complex_ends_alone(tiny: LocalEngine) -> None:
    many = {"type": "object", "properties": {f"prop{number}": {"type": "string"} for number in range(2000)}}
    many["required"] = ["prop0"]

    async def run() -> list[Any]:
        asked = [request(schema_grammar(many), seed=1), request(None, seed=2, max_tokens=40)]
        return await asyncio.gather(*(answer(tiny, each) for each in asked), return_exceptions=True)

    hard, other = asyncio.run(run())
    assert isinstance(hard, InvalidRequest)
    assert hard.code == "grammar_too_complex"
    assert len(other.token_ids) == 40 or other.finish_reason == "stop"


def test_what_is_no_grammar_is_refused(tiny: LocalEngine) -> None:
    with pytest.raises(InvalidRequest):
        answers(tiny, request("start: nowhere"))


def test_penalties_and_biases_stay_within_the_grammar(tiny: LocalEngine) -> None:
    grammar = schema_grammar({"enum": ["yes", "no", 17]})
    for seed in range(6):
        bias = dict.fromkeys((40, 41, 42), 100.0)
        (given_answer,) = answers(tiny, request(grammar, seed=seed, frequency_penalty=1.5, logit_bias=bias, top_p=0.9))
        assert json.loads(text_of(given_answer)) in ("yes", "no", 17)
    (greedy,) = answers(tiny, request(grammar, temperature=0.0))
    assert json.loads(text_of(greedy)) in ("yes", "no", 17)


def test_the_engine_compiles_nothing_that_was_asked_for_in_a_line(
    tiny: LocalEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is known to pass is not tried again; dozens of such at once took all threads that read the store."""
    schema = {"type": "object", "properties": {"in line": {"const": 1}}, "additionalProperties": False}
    wanted = WantedAnswer(schema=schema, tools=(), must_call=False, many_calls=False, field="response_format")
    monkeypatch.setattr(tiny, "_grammars", grammars_of(TINY))  # other tests' models may have ended what they shared
    monkeypatch.setattr(grammars_of(TINY), "prepare", grammars_of(TINY).matcher)
    grammar = load_renderer(TINY).grammar(wanted, PROMPT)
    monkeypatch.setattr(Grammars, "compile", lambda *_: pytest.fail("it is compiled again"))
    assert json.loads(text_of(asyncio.run(answer(tiny, request(grammar.text))))) in ({}, {"in line": 1})


def test_what_is_compiled_for_answers_takes_no_thread_that_reads_the_store(
    tiny: LocalEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where nobody had it compiled in a line, as for a process beside the engine's."""
    go, compiled = threading.Event(), Grammars.compile
    monkeypatch.setattr(Grammars, "compile", lambda *all: (go.wait(2 * WAIT_S), compiled(*all))[1])

    async def run() -> None:
        asked = [request(schema_grammar({"enum": [f"no. {number}"]}), max_tokens=1) for number in range(40)]
        both = [asyncio.create_task(answer(tiny, each)) for each in asked]
        other = Grammars(TINY)
        both += [asyncio.create_task(Followed.begin(other, Grammar(text='start: "a"'), (2,), "")) for _ in both]
        try:
            async with asyncio.timeout(WAIT_S):
                await asyncio.sleep(0)  # all of them ask before
                await asyncio.to_thread(lambda: None)
        finally:
            go.set()
            await asyncio.gather(*both)

    asyncio.run(run())


def test_a_process_beside_the_engines_has_it_compiled_there_in_its_callers_line(
    tiny: LocalEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, there, path = grammars_of(TINY), Grammars(TINY), tmp_path / "line.sock"
    monkeypatch.setattr(here, "prepare", None)
    renderer = load_renderer(TINY)  # of the same grammars, whose place others' models may have taken meanwhile
    wanted = WantedAnswer(schema={"const": "beside"}, tools=(), must_call=False, many_calls=False, field="tools")
    foundation: Any = SimpleNamespace(model=TINY, layout=SimpleNamespace(line=path))

    async def run(line: Line) -> Grammar:
        await line.open()
        grammar = await asyncio.to_thread(renderer.grammar, wanted, PROMPT, "ada")
        await line.aclose()
        with pytest.raises(EngineUnavailable):
            await asyncio.to_thread(renderer.grammar, wanted, PROMPT, "bob")
        return grammar

    with listening(lambda listener: answer_for(listener, tiny, lambda: "ok", there), path):
        line = Line(path)
        BesideServing(foundation, line)
        grammar = asyncio.run(run(line))
    stops = RENDERER.stop_token_ids
    assert [each.has_compiled(grammar, stops, "ada") for each in (there, here)] == [True, False]
