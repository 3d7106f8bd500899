"""Answers of the embedded engine: how they end, what is told of their distribution, and which are refused."""

import asyncio
import math
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
from local_world import CONTEXT, VOCABULARY, Answer, World, answer, answers, prompt, request, until
from prometheus_client import Histogram

from core import telemetry
from core.errors import ConfigError, InvalidRequest
from core.grammars import sets
from core.ids import base_ref
from serving.engines.local import LocalEngine

MakeEngine = Callable[..., LocalEngine]


def test_a_stop_token_ends_and_belongs_to_the_answer(engine: LocalEngine) -> None:
    (free,) = answers(engine, request(prompt(1, 8), max_tokens=20, temperature=0.0))
    stop = free.token_ids[5]
    (stopped,) = answers(engine, request(prompt(1, 8), max_tokens=20, temperature=0.0, stop=(stop,)))
    assert stopped.token_ids == free.token_ids[: free.token_ids.index(stop) + 1]
    assert stopped.finish_reason == "stop"


def test_top_logprobs_are_the_likeliest(world: World, engine: LocalEngine) -> None:
    asked = request(prompt(1, 8), max_tokens=4, seed=1, top_logprobs=3)
    plain = request(prompt(2, 8), max_tokens=4, seed=1)
    given, without = answers(engine, asked, plain)
    tops = [top for chunk in given.chunks for top in chunk.top_logprobs]
    assert not any(chunk.top_logprobs for chunk in without.chunks)
    for at, top in enumerate(tops):
        prefix = [*prompt(1, 8), *given.token_ids[:at]]
        with torch.inference_mode():
            stock = world.models[base_ref(1)](torch.tensor([prefix])).logits[0, -1].log_softmax(-1).topk(3)
        assert [token for token, _ in top] == stock.indices.tolist()
        assert [logprob for _, logprob in top] == pytest.approx(stock.values.tolist(), abs=1e-4)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"temperature": 0.0}, "temperature_zero"),
        ({"frequency_penalty": 0.1}, "frequency_penalty"),
        ({"presence_penalty": 0.1}, "presence_penalty"),
        ({"logit_bias": {3: 1.0}}, "logit_bias"),
    ],
)
def test_what_changes_the_distribution_is_untrainable(engine: LocalEngine, fields: dict[str, Any], reason: str) -> None:
    assert engine.untrainable(request([1], **fields).sampling) == (reason,)
    assert engine.untrainable(request([1], temperature=0.3, seed=4).sampling) == ()
    assert engine.untrainable(request([1], top_p=0.9, top_k=5, min_p=0.1).sampling) == ()  # what is left is told


@pytest.mark.parametrize("fields", [{"top_p": 0.3}, {"top_k": 4}, {"min_p": 0.3}])
def test_truncated_samples_stay_inside_and_are_of_the_sets_that_are_told(
    world: World, engine: LocalEngine, fields: dict[str, Any]
) -> None:
    asked = [request(prompt(n, 10), max_tokens=20, temperature=0.8, seed=n, **fields) for n in range(8)]
    for given in answers(engine, *asked):
        tokens = [*given.request.prompt_token_ids, *given.token_ids]
        allowed = [ids for chunk in given.chunks for ids in chunk.allowed]
        assert len(allowed) == len(given.token_ids)
        for at, token in enumerate(given.token_ids):
            with torch.inference_mode():
                logits = world.models[base_ref(1)](torch.tensor([tokens[: 10 + at]])).logits[0, -1]
            inside = (logits / 0.8)[list(allowed[at])].log_softmax(-1)
            assert given.logprobs[at] == pytest.approx(float(inside[allowed[at].index(token)]), abs=1e-4)
            ordered, order = (logits / 0.8).softmax(-1).sort(descending=True)
            rank = order.tolist().index(token)
            if "top_p" in fields:
                assert ordered[:rank].sum() < 0.3 + 1e-5
            if "top_k" in fields:
                assert rank < 4
                assert len(allowed[at]) == 4
            if "min_p" in fields:
                assert ordered[rank] >= 0.3 * ordered[0] - 1e-6


def test_no_more_ids_are_told_than_show_that_they_are_too_many(
    engine: LocalEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    fields: list[dict[str, Any]] = [{"top_k": 100_000}, {"top_p": 0.9999999}, {"min_p": 1e-9}]
    asked = [request(prompt(n, 10), max_tokens=12, seed=n, **each) for n, each in enumerate(fields)]
    whole = answers(engine, *asked)
    few = request(prompt(9, 10), max_tokens=12, seed=9, top_k=2)
    monkeypatch.setattr(sets, "MAX_IDS", VOCABULARY + 20)
    *given, within = answers(engine, *asked, few)
    for all_told, some in zip(whole, given, strict=True):
        assert some.token_ids == all_told.token_ids
        assert some.logprobs == pytest.approx(all_told.logprobs, abs=1e-4)
        assert sum(len(ids) for chunk in all_told.chunks for ids in chunk.allowed) > 10 * VOCABULARY
        assert sum(len(ids) for chunk in some.chunks for ids in chunk.allowed) == VOCABULARY + 21
    assert [len(ids) for chunk in within.chunks for ids in chunk.allowed] == [2] * 12, "whoever is within tells all"


def test_biases_and_penalties_move_the_choice(engine: LocalEngine) -> None:
    biased, plain, penalised = answers(
        engine,
        request(prompt(1, 8), max_tokens=5, logit_bias={77: 100.0}),
        request([5] * 8, max_tokens=60, temperature=0.0),
        request([5] * 8, max_tokens=60, temperature=0.0, frequency_penalty=2.0, presence_penalty=2.0),
    )
    assert biased.token_ids == [77] * 5
    assert len(set(penalised.token_ids)) > len(set(plain.token_ids))


def test_abort_frees_the_slot_at_once(make_engine: MakeEngine) -> None:
    engine = make_engine(local={"slots": 1})

    async def run() -> Answer:
        stream = engine.generate(request(prompt(1, 5), max_tokens=150))
        await anext(stream)
        await stream.aclose()
        return await answer(engine, request(prompt(2, 5), max_tokens=3))

    before = telemetry.GENERATED_TOKENS._value.get()
    assert len(asyncio.run(run()).token_ids) == 3
    assert telemetry.GENERATED_TOKENS._value.get() - before < 100


def test_how_long_requests_wait_for_a_slot_is_measured(
    make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits = Histogram("waits", "", registry=None)
    monkeypatch.setattr(telemetry, "QUEUE_SECONDS", waits)
    engine = make_engine(local={"slots": 1})

    async def run() -> float:
        began_s = time.monotonic()
        first = asyncio.ensure_future(answer(engine, request(prompt(1, 5), max_tokens=150)))
        second = asyncio.ensure_future(answer(engine, request(prompt(2, 5), max_tokens=5)))
        await first
        first_s = time.monotonic() - began_s
        await second
        return first_s

    first_s = asyncio.run(run())
    figures = {sample.name: sample.value for metric in waits.collect() for sample in metric.samples}
    assert figures["waits_count"] == 2
    assert first_s / 2 < figures["waits_sum"] < 2 * first_s


def test_a_cancelled_reader_aborts_even_while_it_waits_for_a_slot(make_engine: MakeEngine) -> None:
    engine = make_engine(local={"slots": 1})

    async def run() -> None:
        first = asyncio.ensure_future(answer(engine, request(prompt(1, 5), max_tokens=150)))
        second = asyncio.ensure_future(answer(engine, request(prompt(2, 5), max_tokens=150)))
        await until(lambda: telemetry.WAITING_REQUESTS._value.get() == 1)
        second.cancel()
        await until(lambda: telemetry.WAITING_REQUESTS._value.get() == 0)
        assert not first.done(), "it did not have to wait for the slot"
        first.cancel()
        await until(lambda: telemetry.RUNNING_REQUESTS._value.get() == 0)

    asyncio.run(run())


@pytest.mark.parametrize(
    ("asked", "param"),
    [
        (request([]), "prompt_token_ids"),
        (request([VOCABULARY]), "prompt_token_ids"),
        (request([-1]), "prompt_token_ids"),
        (request(prompt(1, CONTEXT), max_tokens=1), "prompt_token_ids"),
        (request(prompt(1, 10), max_tokens=CONTEXT - 9), "max_tokens"),
        (request([1], max_tokens=0), "max_tokens"),
        (request([1], temperature=-0.1), "temperature"),
        (request([1], temperature=math.nan), "temperature"),
        (request([1], top_p=0.0), "top_p"),
        (request([1], top_k=0), "top_k"),
        (request([1], min_p=1.5), "min_p"),
        (request([1], logit_bias={VOCABULARY: 1.0}), "logit_bias"),
    ],
)
def test_what_cannot_be_done_is_refused_by_name(engine: LocalEngine, asked: Any, param: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        answers(engine, asked)
    assert refused.value.param == param


def test_the_context_can_be_filled_to_the_last_token(world: World, make_engine: MakeEngine) -> None:
    (given,) = answers(make_engine(local={"slots": 1}), request(prompt(1, 100), max_tokens=CONTEXT - 100, seed=1))
    assert len(given.token_ids) == CONTEXT - 100
    scored = world.score(1, [*prompt(1, 100), *given.token_ids])[99:]
    assert (scored - torch.tensor(given.logprobs)).abs().max() <= 1e-4


def test_the_least_top_p_takes_the_likeliest(engine: LocalEngine) -> None:
    """Times a sum of probabilities, this top_p is 0 in float32."""
    likeliest, least = answers(
        engine,
        request(prompt(4, 9), max_tokens=6, temperature=0.0),
        request(prompt(4, 9), max_tokens=6, top_p=1e-300),
    )
    assert least.token_ids == likeliest.token_ids


def test_settings_that_do_not_fit_the_model_are_named(make_engine: MakeEngine) -> None:
    with pytest.raises(ConfigError, match="context_length"):
        make_engine(context_length=CONTEXT + 1)
