"""Adapter versions in the local engine: what is held of each, what computes, and that it computes what was learned."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from adapter_world import Adapters
from local_world import Gate, World, answer, answers, prompt, request, until
from safetensors.torch import save_file

from core.errors import Conflict, EngineUnavailable, WeightsError
from core.ids import base_ref
from core.ports import AdapterConfig
from core.settings import LocalEngineSettings, ServingSettings
from serving.engines.local import LocalEngine

# Nats. Of float32 what two orders of summation differ by; of half precision its roundings, of one merged weight each,
# of which the kernels of one processor add up more than another's.
BOUNDS = {"float32": 5e-5, "bfloat16": 0.3}


@pytest.fixture
def world(tmp_path: Path) -> Adapters:
    return Adapters(tmp_path)


def started(world: World, dtype: str = "float32") -> LocalEngine:
    settings = ServingSettings(local=LocalEngineSettings(slots=4, dtype=dtype))  # type: ignore[arg-type]
    engine = LocalEngine(settings, world.model_dir, world.weights, world.anchor)
    engine.start()
    return engine


@pytest.fixture
def engine(world: Adapters) -> Iterator[LocalEngine]:
    engine = started(world)
    yield engine
    engine.close()


def computing(engine: LocalEngine) -> set[int]:
    return {version.version for version in engine._versions.decoders}


@pytest.mark.parametrize("dtype", BOUNDS)
def test_what_is_merged_computes_what_learns_unmerged(world: Adapters, dtype: str) -> None:
    engine = started(world, dtype)
    try:
        engine.load(world.adapter(2))
        engine.switch(base_ref(2))
        (found,) = answers(engine, request(prompt(0, 40), max_tokens=40, seed=0))
    finally:
        engine.close()
    tokens = prompt(0, 40) + found.token_ids
    learned, given = (scores[39:] for scores in (world.score_unmerged(tokens), world.score(1, tokens)))
    served = torch.tensor(found.logprobs)
    gap = float((served - learned).abs().max())
    assert gap < BOUNDS[dtype], gap
    assert float((served - given).abs().max()) > 4 * BOUNDS[dtype], "the adapter makes no difference"
    assert set(found.versions) == {2}


def test_held_are_adapters_and_merged_is_what_serves(world: Adapters, engine: LocalEngine) -> None:
    for version in (2, 3, 4):
        engine.load(world.adapter(version))
    assert {version.version for version in engine.pinnable()} == {1, 2, 3, 4}
    assert computing(engine) == {1}
    for version in (2, 3, 4):
        assert engine.probe(base_ref(version))["finite"] == 1
        assert computing(engine) == {1, version}, "of the candidates only the last one probed"
    engine.switch(base_ref(4))
    assert computing(engine) == {1, 4}
    engine.unload(base_ref(1))
    engine.switch(base_ref(3))
    assert computing(engine) == {3}
    engine.switch(base_ref(2))
    assert computing(engine) == {2}
    (found,) = answers(engine, request(prompt(1, 20), max_tokens=3))
    assert set(found.versions) == {2}


def test_a_pinned_request_has_its_version_merged_and_it_stays_while_it_runs(
    world: Adapters, engine: LocalEngine
) -> None:
    engine.load(world.adapter(2))
    engine.load(world.adapter(3))

    async def ask() -> None:
        gate = Gate(engine, 3)
        pinned = answer(engine, request(prompt(2, 20), max_tokens=100, version=2))
        running = asyncio.create_task(pinned)
        await gate.shut()
        assert 2 in computing(engine)
        await asyncio.to_thread(engine.switch, base_ref(3))
        assert 2 in computing(engine)
        with pytest.raises(Conflict, match="version 2 still serves"):
            await asyncio.to_thread(engine.unload, base_ref(2))
        gate.open()
        found = await running
        assert set(found.versions) == {2}
        await asyncio.to_thread(engine.switch, base_ref(1))
        assert computing(engine) == {1}

    asyncio.run(ask())
    engine.unload(base_ref(2))
    with pytest.raises(EngineUnavailable, match="version 2 is not loaded"):
        answers(engine, request(prompt(2, 20), version=2))


def test_who_hangs_up_while_it_is_merged_holds_nothing(world: Adapters, engine: LocalEngine) -> None:
    engine.load(world.adapter(2))

    async def hang_up() -> None:
        asking = asyncio.create_task(answer(engine, request(prompt(3, 20), max_tokens=3, version=2)))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        await until(lambda: 2 in computing(engine) and not engine._versions.users(base_ref(2)))

    asyncio.run(hang_up())
    engine.unload(base_ref(2))


def test_what_no_adapter_changes_is_in_memory_once(world: Adapters, engine: LocalEngine) -> None:
    engine.load(world.adapter(2))
    engine.switch(base_ref(2))
    one, two = (engine._versions.decoders[base_ref(version)].model for version in (1, 2))
    assert one.model.embed_tokens.weight.data_ptr() == two.model.embed_tokens.weight.data_ptr()
    assert one.model.layers[0].mlp.up_proj.weight.data_ptr() != two.model.layers[0].mlp.up_proj.weight.data_ptr()


def test_whole_versions_and_adapters_take_turns(world: Adapters, engine: LocalEngine) -> None:
    engine.load(world.publish(2))
    engine.load(world.adapter(3))
    for version in (2, 3, 2):
        engine.switch(base_ref(version))
        (found,) = answers(engine, request(prompt(4, 20), max_tokens=5))
        tokens = prompt(4, 20) + found.token_ids
        wanted = world.score(2, tokens) if version == 2 else world.score_unmerged(tokens)
        torch.testing.assert_close(torch.tensor(found.logprobs), wanted[19:], rtol=0, atol=2e-4)


def test_an_adapter_upon_other_weights_is_refused_naming_both(world: Adapters, engine: LocalEngine) -> None:
    other = "ab" * 32
    with pytest.raises(WeightsError, match=f"adapter upon weights {other}, and the base is {world.anchor.digest}"):
        engine.load(world.adapter(2, base_digest=other))
    assert engine.loaded().keys() == {base_ref(1)}


def test_an_adapter_that_does_not_fit_the_model_is_refused_by_name(world: Adapters, engine: LocalEngine) -> None:
    path = world.directory / "odd.safetensors"
    tensors = {"model.layers.9.mlp.up_proj.lora_A.weight": torch.ones(4, 128)}
    save_file(tensors | {"model.layers.9.mlp.up_proj.lora_B.weight": torch.ones(384, 4)}, path)
    config = AdapterConfig(base_digest=world.anchor.digest, rank=4, alpha=1.0)
    ref = world.weights.publish(base_ref(2), [path], base_ref(1), config)
    with pytest.raises(WeightsError, match=r"layers\.9\.mlp\.up_proj\.weight, which the base does not have"):
        engine.load(ref)
