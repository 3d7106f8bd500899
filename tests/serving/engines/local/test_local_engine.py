"""Answers, aborts, refusals and failures of the embedded engine."""

import asyncio
import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import torch
from local_world import CONTEXT, VOCABULARY, Answer, Gate, World, answer, answers, prompt, request, until
from prometheus_client import Histogram

from core import telemetry
from core.errors import ConfigError, EngineUnavailable, InvalidRequest, NotFinite
from core.grammars import sets
from core.ids import ANCHOR, base_ref
from core.settings import LocalEngineSettings, ServingSettings
from serving.engines.local import LocalEngine, scheduler, sequence, stream
from serving.engines.local.sequence import Sequence
from serving.engines.local.stream import Stream

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
        gate = Gate(engine, 5)
        stream = engine.generate(request(prompt(1, 5), max_tokens=150))
        await anext(stream)
        await stream.aclose()
        gate.open()
        return await answer(engine, request(prompt(2, 5), max_tokens=3))

    before = telemetry.GENERATED_TOKENS._value.get()
    assert len(asyncio.run(run()).token_ids) == 3
    assert telemetry.GENERATED_TOKENS._value.get() - before <= 5 + 3


def test_how_long_requests_wait_for_a_slot_is_measured(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    waits, now_s = Histogram("waits", "", registry=None), [100.0]
    monkeypatch.setattr(telemetry, "QUEUE_SECONDS", waits)
    for module in (scheduler, sequence):
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now_s[0]))
    settings = ServingSettings(local=LocalEngineSettings(slots=1))
    steps = LocalEngine(settings, world.model_dir, world.weights, world.anchor)._scheduler  # without its thread

    async def run() -> None:
        steps._inbox.extend(Sequence(request(prompt(n, 5), max_tokens=2), Stream()) for n in (1, 2))
        for _ in range(3):  # two tokens of the first, and then the second has the slot
            now_s[0] += 1.5
            steps._step()

    asyncio.run(run())
    figures = {sample.name: sample.value for metric in waits.collect() for sample in metric.samples}
    assert (figures["waits_count"], figures["waits_sum"]) == (2, 1.5 + 4.5)


def test_a_cancelled_reader_aborts_even_while_it_waits_for_a_slot(make_engine: MakeEngine) -> None:
    engine = make_engine(local={"slots": 1})

    async def run() -> None:
        gate = Gate(engine, 0)
        first = asyncio.ensure_future(answer(engine, request(prompt(1, 5), max_tokens=150)))
        second = asyncio.ensure_future(answer(engine, request(prompt(2, 5), max_tokens=150)))
        await gate.asked(2)
        gate.allow(1)
        await until(lambda: telemetry.WAITING_REQUESTS._value.get() == 1)
        second.cancel()
        await asyncio.gather(second, return_exceptions=True)
        gate.allow(1)
        await until(lambda: telemetry.WAITING_REQUESTS._value.get() == 0)
        assert not first.done(), "it did not have to wait for the slot"
        first.cancel()
        gate.open()
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


def poison(tensors: dict[str, torch.Tensor]) -> None:
    tensors["model.layers.1.mlp.up_proj.weight"][0, 0] = math.nan


def test_nan_weights_are_caught_by_the_probe_and_by_the_sampler(world: World, make_engine: MakeEngine) -> None:
    engine = make_engine(local={"slots": 3})
    engine.load(world.publish(306, poison))
    assert engine.probe(base_ref(306))["finite"] == 0
    asked = [request(prompt(n, 30), max_tokens=5, version=306) for n in range(3)]
    for each in asked:
        with pytest.raises(EngineUnavailable, match="finite"):
            answers(engine, each)
    (given,) = answers(engine, request(prompt(1, 5), max_tokens=50, seed=1))
    assert all(map(math.isfinite, given.logprobs)), "what was left in the slots must not spread"


@pytest.mark.parametrize("narrowed", [{}, {"frequency_penalty": 1.0}])
def test_a_row_that_is_not_finite_fails_alone(
    engine: LocalEngine, monkeypatch: pytest.MonkeyPatch, narrowed: dict[str, float]
) -> None:
    """The others of its batch are not affected, nor are the next users of its slot."""
    asked = [request(prompt(n, 12), max_tokens=20, seed=n) for n in range(3)]
    alone = [given.token_ids for given in answers(engine, *asked)]
    spoilt = request(prompt(9, 12), max_tokens=20, temperature=1e-40, **narrowed)
    with pytest.raises(InvalidRequest, match="temperature"):
        answers(engine, spoilt)
    # Let it pass the check, as a defect might.
    monkeypatch.setattr("serving.engines.local.engine.check_request", lambda *_: None)
    before = telemetry.NOT_FINITE_ROWS._value.get()

    async def together() -> list[Any]:
        return await asyncio.gather(*(answer(engine, each) for each in (*asked, spoilt)), return_exceptions=True)

    *given, failed = asyncio.run(together())
    assert [each.token_ids for each in given] == alone
    assert isinstance(failed, NotFinite)
    assert failed.version == ANCHOR
    assert telemetry.NOT_FINITE_ROWS._value.get() - before == 1
    assert [given.token_ids for given in answers(engine, *asked)] == alone


def test_a_prompt_left_half_computed_leaves_no_numbers_that_are_none(world: World) -> None:
    """The prompt left NaNs in its slot, which nothing noticed since nothing sampled from them."""
    engine = LocalEngine(
        ServingSettings(local=LocalEngineSettings(slots=1, prefill_tokens=16)),
        world.model_dir,
        world.weights,
        world.anchor,
    )
    engine.load(world.publish(311, poison))
    steps = engine._scheduler  # without its thread, so that it stops where it shall

    async def run() -> None:
        left = Sequence(request(prompt(1, 100), version=311), Stream())
        steps._inbox.append(left)
        steps._step()
        assert 0 < left.computed < 100
        left.aborted = True
        next_one = Sequence(request(prompt(2, 5), max_tokens=2), Stream())
        steps._inbox.append(next_one)
        steps._step()
        steps._step()  # decodes, and with that reads some places beyond its own
        steps._outbox.send()
        said = await next_one.stream.next()
        assert len(said.logprobs) == 2
        assert all(map(math.isfinite, said.logprobs))

    asyncio.run(run())


def test_the_least_top_p_takes_the_likeliest(engine: LocalEngine) -> None:
    """Times a sum of probabilities, this top_p is 0 in float32."""
    likeliest, least = answers(
        engine,
        request(prompt(4, 9), max_tokens=6, temperature=0.0),
        request(prompt(4, 9), max_tokens=6, top_p=1e-300),
    )
    assert least.token_ids == likeliest.token_ids


def test_a_step_that_fails_tells_its_requests_and_the_engine_goes_on(
    make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = make_engine(local={"slots": 2})

    def fail(*_args: Any) -> None:
        raise RuntimeError("no more memory")

    with monkeypatch.context() as patch:
        patch.setattr("serving.engines.local.scheduler.sample", fail)
        with pytest.raises(EngineUnavailable, match="RuntimeError: no more memory"):
            answers(engine, *[request(prompt(1, 5), max_tokens=3)] * 3)
    (given,) = answers(engine, request(prompt(1, 5), max_tokens=3))
    assert len(given.token_ids) == 3
    assert engine.state == "ok"


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_defect_ends_the_engine_and_leaves_nobody_waiting(
    make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = make_engine(local={"slots": 1})

    def fail(*_args: Any) -> None:
        raise TypeError("a defect")

    async def run() -> list[Any]:
        asked = [answer(engine, request(prompt(n, 5), max_tokens=3)) for n in range(3)]
        return await asyncio.gather(*asked, return_exceptions=True)

    with monkeypatch.context() as patch:
        patch.setattr("serving.engines.local.scheduler.sample", fail)
        assert all(isinstance(result, EngineUnavailable) for result in asyncio.run(run()))
    with pytest.raises(EngineUnavailable):
        answers(engine, request([1], max_tokens=1))
    engine._scheduler._thread.join()
    assert engine.state != "ok"


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_defect_in_a_command_reaches_its_caller(make_engine: MakeEngine) -> None:
    def fail() -> None:
        raise KeyError("a defect")

    scheduler = make_engine(local={"slots": 1})._scheduler
    with pytest.raises(EngineUnavailable, match="thread ended"):
        scheduler.between_steps(fail)
    scheduler._thread.join()


def test_close_ends_requests_with_abort(make_engine: MakeEngine) -> None:
    engine = make_engine(local={"slots": 1})

    async def run() -> list[Answer]:
        gate = Gate(engine, 0)
        tasks = [asyncio.ensure_future(answer(engine, request(prompt(n, 5), max_tokens=150))) for n in range(3)]
        await gate.asked(3)
        gate.allow(1)
        await until(lambda: telemetry.WAITING_REQUESTS._value.get() == 2)
        await asyncio.to_thread(engine.close)
        return [await task for task in tasks]

    assert [given.finish_reason for given in asyncio.run(run())] == ["abort"] * 3
    with pytest.raises(EngineUnavailable, match="not running"):
        answers(engine, request([1], max_tokens=1))


def test_settings_that_do_not_fit_the_model_are_named(make_engine: MakeEngine) -> None:
    with pytest.raises(ConfigError, match="context_length"):
        make_engine(context_length=CONTEXT + 1)


def test_tokens_that_nobody_waits_for_come_together(engine: LocalEngine) -> None:
    streamed = request(prompt(1, 20), max_tokens=60, seed=5)
    whole = msgspec.structs.replace(streamed, streamed=False)
    (one_by_one,) = answers(engine, streamed)
    (together,) = answers(engine, whole)
    assert together.token_ids == one_by_one.token_ids
    assert together.finish_reason == "length"
    sizes = [len(chunk.token_ids) for chunk in together.chunks]
    assert len(sizes) <= 6
    assert sizes[0] != stream._HELD_TOKENS  # the first does not wait for others: by it the time to it is known
