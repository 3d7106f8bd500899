"""The engine within the process when its numbers are none, when a step fails, and when it ends."""

import asyncio
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from local_world import Answer, World, answer, answers, prompt, request, until

from core import telemetry
from core.errors import EngineUnavailable, InvalidRequest, NotFinite
from core.ids import ANCHOR, base_ref
from core.settings import LocalEngineSettings, ServingSettings
from serving.engines.local import LocalEngine
from serving.engines.local.sequence import Sequence
from serving.engines.local.stream import Stream

MakeEngine = Callable[..., LocalEngine]


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
