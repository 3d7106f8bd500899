"""Other weights in the engine within the process: swapped under streams, refused where they do not fit, and probed."""

import asyncio
import math
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
import torch
from local_world import VOCABULARY, Answer, Gate, World, answer, answers, prompt, request, until

from core import telemetry
from core.errors import Conflict, EngineUnavailable, WeightsError
from core.ids import ANCHOR, PolicyRef, base_ref
from core.settings import LocalEngineSettings, ServingSettings
from serving.engines.local import LocalEngine

MakeEngine = Callable[..., LocalEngine]


def test_a_swap_under_many_streams_loses_none(world: World, make_engine: MakeEngine) -> None:
    engine = make_engine(local={"slots": 12})
    firsts: list[tuple[PolicyRef, datetime]] = []
    engine.on_first_token = lambda version, at: firsts.append((version.version, at))
    versions, before = [world.publish(number) for number in (201, 202, 203)], datetime.now(UTC)

    async def run() -> list[Answer]:
        gate = Gate(engine, 200)
        asked = [request(prompt(n, 12), max_tokens=70, seed=n) for n in range(16)]
        tasks = [asyncio.ensure_future(answer(engine, each)) for each in asked]
        for ref in versions:
            await asyncio.to_thread(engine.load, ref)
            await gate.shut()
            await asyncio.to_thread(engine.switch, ref.version)
            gate.allow(200)
        gate.open()
        return [await task for task in tasks]

    given = asyncio.run(run())
    assert [len(each.token_ids) for each in given] == [70] * 16
    assert all(each.finish_reason == "length" for each in given)
    assert {version for each in given for version in each.versions} == {1, 201, 202, 203}
    assert [version for version, _ in firsts] == [1, 201, 202, 203]
    assert all(before <= at <= datetime.now(UTC) for _, at in firsts)
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
        gate = Gate(engine, 0)
        pinned = asyncio.ensure_future(answer(engine, request(prompt(1, 10), max_tokens=100, seed=1, version=1)))
        live = asyncio.ensure_future(answer(engine, request(prompt(1, 10), max_tokens=100, seed=1)))
        await gate.asked(2)
        gate.allow(10)
        await until(lambda: telemetry.RUNNING_REQUESTS._value.get() == 2)
        with pytest.raises(Conflict, match="still serves 1"):
            await asyncio.to_thread(engine.unload, base_ref(1))
        gate.open()
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


def test_a_pinned_answer_that_is_cut_off_ends_under_its_version(world: World, make_engine: MakeEngine) -> None:
    engine = make_engine(local={"slots": 2})
    engine.load(world.publish(218))
    engine.switch(base_ref(218))

    async def run() -> Answer:
        gate = Gate(engine, 0)
        pinned = asyncio.ensure_future(answer(engine, request(prompt(1, 10), max_tokens=100, version=1)))
        await gate.asked(1)
        gate.allow(10)
        await until(lambda: telemetry.RUNNING_REQUESTS._value.get() == 1)
        await asyncio.to_thread(engine.close)
        return await pinned

    last = asyncio.run(run()).chunks[-1]
    assert (last.finish_reason, last.version) == ("abort", ANCHOR)


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
    engine.probe(world.anchor.version)
    assert {tuple(sequence[:3]) for sequence in engine._probe._drawn_LP} == set(begun)
    drawn = {token for sequence in engine._probe._drawn_LP for token in sequence}
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
    said[:] = [(word,) * 20] * 2 + [(9, 10, 11) * 10] * 2
    assert engine.probe(base_ref(310))["kl_to_live"] < after["kl_to_live"] / 4, "half of them decide nothing"
    assert engine.probe(base_ref(1))["kl_to_live"] == pytest.approx(0, abs=1e-6)
