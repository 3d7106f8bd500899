"""Versions, aborts, refusals and failures of the embedded engine."""

import asyncio
import math
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import torch
from local_world import CONTEXT, VOCABULARY, Answer, World, answer, answers, prompt, request, until
from prometheus_client import Histogram

from core import telemetry
from core.errors import ConfigError, Conflict, EngineUnavailable, InvalidRequest, NotFinite, WeightsError
from core.grammars import sets
from core.ids import ANCHOR, PolicyRef, base_ref
from core.settings import LocalEngineSettings, ServingSettings
from serving.engines.local import LocalEngine
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


def test_a_swap_under_many_streams_loses_none(world: World, make_engine: MakeEngine) -> None:
    engine = make_engine(local={"slots": 12})
    firsts: list[tuple[PolicyRef, datetime]] = []
    engine.on_first_token = lambda version, at: firsts.append((version.version, at))
    versions = [world.publish(number) for number in (201, 202, 203)]

    async def run() -> list[Answer]:
        tokens = [0]
        tasks = [
            asyncio.ensure_future(
                answer(
                    engine, request(prompt(n, 12), max_tokens=70, seed=n), lambda: tokens.__setitem__(0, tokens[0] + 1)
                )
            )
            for n in range(16)
        ]
        for ref in versions:
            seen = tokens[0]
            await asyncio.to_thread(engine.load, ref)
            await until(lambda seen=seen: tokens[0] > seen + 20)
            await asyncio.to_thread(engine.switch, ref.version)
        return [await task for task in tasks]

    given = asyncio.run(run())
    assert [len(each.token_ids) for each in given] == [70] * 16
    assert all(each.finish_reason == "length" for each in given)
    assert {version for each in given for version in each.versions} == {1, 201, 202, 203}
    assert [version for version, _ in firsts] == [1, 201, 202, 203]
    assert all(datetime.now(UTC) - at < timedelta(minutes=1) for _, at in firsts)
    assert engine.live_version == base_ref(203)
    assert telemetry.POLICY_VERSION._value.get() == 203


def test_a_version_that_goes_live_again_speaks_first_again(world: World, make_engine: MakeEngine) -> None:
    engine = make_engine(local={"slots": 2})
    firsts: list[PolicyRef] = []
    engine.on_first_token = lambda version, _at: firsts.append(version.version)
    engine.load(world.publish(204))
    for version in (1, 204, 1):
        engine.switch(base_ref(version))
        answers(engine, request(prompt(1, 5), max_tokens=2))
    assert firsts == [1, 204, 1]


def test_pinned_requests_stay_while_others_follow(world: World, make_engine: MakeEngine) -> None:
    engine = make_engine(local={"slots": 8})
    engine.load(world.publish(205))
    engine.switch(base_ref(205))

    async def run() -> list[Answer]:
        pinned = asyncio.ensure_future(answer(engine, request(prompt(1, 10), max_tokens=100, seed=1, version=1)))
        live = asyncio.ensure_future(answer(engine, request(prompt(1, 10), max_tokens=100, seed=1)))
        await until(lambda: telemetry.RUNNING_REQUESTS._value.get() == 2)
        with pytest.raises(Conflict, match="still serves 1"):
            await asyncio.to_thread(engine.unload, base_ref(1))
        return [await pinned, await live]

    pinned, live = asyncio.run(run())
    for given, version in ((pinned, 1), (live, 205)):
        assert set(given.versions) == {version}
        scored = world.score(version, [*prompt(1, 10), *given.token_ids])[9:]
        assert (scored - torch.tensor(given.logprobs)).abs().max() <= 1e-4
    with pytest.raises(Conflict, match="live"):
        engine.unload(base_ref(205))
    engine.unload(base_ref(1))
    assert set(engine.loaded()) == {base_ref(205)}
    with pytest.raises(EngineUnavailable, match="version 1 is not loaded"):
        answers(engine, request(prompt(1, 10), version=1))


def test_loaded_tells_the_digest_of_what_is_loaded(world: World, make_engine: MakeEngine) -> None:
    engine = make_engine(local={"slots": 1})
    ref = world.publish(206)
    engine.load(ref)
    assert engine.loaded() == {ANCHOR: world.anchor.digest, base_ref(206): ref.digest}


def test_what_is_loaded_outlives_its_file(world: World, make_engine: MakeEngine) -> None:
    engine = make_engine(local={"slots": 1})
    engine.load(world.publish(207))
    (shard,) = (world.directory / "blobs" / "weights" / "00000207").glob("*.safetensors")
    with shard.open("r+b") as file:
        file.seek(100_000)
        file.write(bytes(range(256)) * 3000)
    (given,) = answers(engine, request(prompt(1, 10), max_tokens=10, seed=1, version=207))
    scored = world.score(207, [*prompt(1, 10), *given.token_ids])[9:]
    assert (scored - torch.tensor(given.logprobs)).abs().max() <= 1e-4


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
        first = asyncio.ensure_future(answer(engine, request(prompt(1, 5), max_tokens=50)))
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


def wrong_shape(tensors: dict[str, torch.Tensor]) -> None:
    tensors["model.norm.weight"] = torch.ones(64)


def missing(tensors: dict[str, torch.Tensor]) -> None:
    del tensors["model.layers.2.mlp.up_proj.weight"]


def unknown(tensors: dict[str, torch.Tensor]) -> None:
    tensors["model.layers.9.mlp.up_proj.weight"] = torch.ones(2)


def integers(tensors: dict[str, torch.Tensor]) -> None:
    tensors["model.norm.weight"] = torch.ones(128, dtype=torch.int64)


@pytest.mark.parametrize(
    ("version", "change", "named"),
    [(301, wrong_shape, "norm"), (302, missing, "layers.2"), (303, unknown, "layers.9"), (304, integers, "norm")],
)
def test_weights_that_do_not_fit_are_refused_and_serving_goes_on(
    world: World, make_engine: MakeEngine, version: int, change: Any, named: str
) -> None:
    engine = make_engine(local={"slots": 2})
    with pytest.raises(WeightsError, match=named):
        engine.load(world.publish(version, change))
    assert set(engine.loaded()) == {ANCHOR}
    (given,) = answers(engine, request(prompt(1, 5), max_tokens=3))
    assert set(given.versions) == {1}


def test_corrupt_weights_are_refused(world: World, make_engine: MakeEngine) -> None:
    engine = make_engine(local={"slots": 2})
    ref = world.publish(305)
    (shard,) = (world.directory / "blobs" / "weights" / "00000305").glob("*.safetensors")
    content = bytearray(shard.read_bytes())
    content[-5] ^= 1
    shard.write_bytes(content)
    with pytest.raises(WeightsError, match="corrupt"):
        engine.load(ref)
    assert set(engine.loaded()) == {ANCHOR}


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


def test_the_probe_tells_distance_and_entropy(world: World, make_engine: MakeEngine) -> None:
    engine = make_engine(local={"slots": 2})

    def nudge(tensors: dict[str, torch.Tensor]) -> None:
        torch.manual_seed(1)  # version 1's own, slightly moved
        for name, tensor in world.models[base_ref(1)].named_parameters():
            tensors[name] = tensor.detach() * (1.02 if "mlp" in name else 1.0)

    engine.load(world.publish(307, nudge))
    engine.load(world.publish(308))
    same, near, far = (engine.probe(base_ref(version)) for version in (1, 307, 308))
    assert same["kl_to_live"] == pytest.approx(0, abs=1e-6)
    assert 0 < near["kl_to_live"] < 0.1 < far["kl_to_live"]
    assert 0 < same["entropy"] < math.log(VOCABULARY)
    assert same["finite"] == near["finite"] == far["finite"] == 1
    assert make_engine(local={"slots": 2}).probe(base_ref(1)) == same, "a fixed seed"


def test_the_probe_looks_at_what_users_said_of_late(world: World) -> None:
    """The version is broken at one word only, which is in no text that the anchor draws, and not in their prompt."""
    said: list[tuple[int, ...]] = []
    begun = [(3, 4, 5)]
    settings = ServingSettings(local=LocalEngineSettings(slots=2))
    engine = LocalEngine(settings, world.model_dir, world.weights, world.anchor, prompts=begun, recent=lambda: said)
    assert {tuple(sequence[:3]) for sequence in engine._probe._sequences_LP} == set(begun)
    drawn = {token for sequence in engine._probe._sequences_LP for token in sequence}
    word = next(token for token in range(VOCABULARY) if token not in drawn)

    def forget_one_word(tensors: dict[str, torch.Tensor]) -> None:
        torch.manual_seed(1)
        for name, tensor in world.models[base_ref(1)].named_parameters():
            tensors[name] = tensor.detach().clone()
        tensors["model.embed_tokens.weight"][word] *= -1

    engine.load(world.publish(310, forget_one_word))
    before = engine.probe(base_ref(310))
    said += [(word,) * 20] * 3
    after = engine.probe(base_ref(310))
    assert after["kl_to_live"] > 2 * before["kl_to_live"]
    assert after["entropy"] == before["entropy"]
    said[:] = [(9, 10, 11) * 10] * 5 + [(word,) * 20] * 2
    assert engine.probe(base_ref(310))["kl_to_live"] < after["kl_to_live"] / 2, "a few of many decide nothing"
    assert engine.probe(base_ref(1))["kl_to_live"] == pytest.approx(0, abs=1e-6)


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
        tasks = [asyncio.ensure_future(answer(engine, request(prompt(n, 5), max_tokens=150))) for n in range(3)]
        await until(lambda: telemetry.WAITING_REQUESTS._value.get() == 2)
        await asyncio.to_thread(engine.close)
        return [await task for task in tasks]

    assert [given.finish_reason for given in asyncio.run(run())] == ["abort"] * 3
    with pytest.raises(EngineUnavailable, match="not running"):
        answers(engine, request([1], max_tokens=1))


def test_settings_that_do_not_fit_the_model_are_named(make_engine: MakeEngine) -> None:
    with pytest.raises(ConfigError, match="context_length"):
        make_engine(context_length=CONTEXT + 1)
