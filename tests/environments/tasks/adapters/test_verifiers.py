"""Environments of verifiers, of one turn and of several, make rollouts with a model over HTTP."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar

import pytest
from repeated_words_module import MODULE, NAME
from scripted_model import ScriptedModel, scripted_model

from environments.errors import InfrastructureFailure, TaskError
from environments.tasks.adapters.verifiers_process import RolledOut, VerifiersEnvironment, Wanted
from environments.tasks.adapters.verifiers_worker import _told
from environments.tasks.public.interpreters import uv_program

T = TypeVar("T")


def wanted(folder: Path, turns: int = 1) -> Wanted:
    (folder / f"{NAME}.py").write_text(MODULE)
    agent = {"harness": {"id": "null"}, "runtime": {"type": "subprocess"}}
    return Wanted(NAME, {"taskset": {"id": NAME, "turns": turns}, "agent": agent}, paths=(folder,))


def with_environment(
    given: Wanted, kept_images: Path, use: Callable[[VerifiersEnvironment, ScriptedModel], Awaitable[T]]
) -> T:
    async def run() -> T:
        async with scripted_model() as model:
            environment = await VerifiersEnvironment.start(given, kept_images)
            try:
                return await use(environment, model)
            finally:
                await environment.close()

    return asyncio.run(run())


@pytest.fixture(autouse=True)
def uv() -> None:
    if uv_program() is None:
        pytest.skip("uv is not installed, by which verifiers starts its harness")


def test_a_rollout_of_several_turns(tmp_path: Path, kept_images: Path) -> None:
    async def use(environment: VerifiersEnvironment, model: ScriptedModel) -> None:
        assert [task.metadata["title"] for task in environment.tasks] == ["one", "two"]
        rolled = await asyncio.gather(*(_rolled(environment, model, n) for n in range(2)))
        assert [(one.reward, one.turns, one.late) for one in rolled] == [(1.0, 3, False)] * 2
        assert all(one.output_tokens > 0 for one in rolled)
        assert {body["model"] for _, body in model.asked} == {"ours"}

    with_environment(wanted(tmp_path, turns=3), kept_images, use)


def test_one_turn_then_an_endpoint_that_fails_then_a_rollout_given_up(tmp_path: Path, kept_images: Path) -> None:
    async def use(environment: VerifiersEnvironment, model: ScriptedModel) -> None:
        assert (await _rolled(environment, model, 0)).reward == 1
        model.says = "nothing of the kind"
        assert (await _rolled(environment, model, 0)).reward == 0
        model.fails = 400
        with pytest.raises(InfrastructureFailure, match="out of order") as caught:
            await _rolled(environment, model, 1)
        assert caught.value.part == "service"
        model.fails, model.says = None, None
        late = asyncio.create_task(_rolled(environment, model, 1))
        await asyncio.sleep(0)
        late.cancel()
        with pytest.raises(asyncio.CancelledError):
            await late
        assert (await _rolled(environment, model, 1)).reward == 1

    with_environment(wanted(tmp_path), kept_images, use)


def episode(stopped: str, **fields: Any) -> Any:
    trace = SimpleNamespace(
        stop_condition=stopped, is_timeout=stopped.endswith("_timeout"), reward=0.5, rewards={}, errors=[]
    )
    values = {"ok": True, "is_timeout": False, "errors": [], "traces": [trace], "num_turns": 1}
    return SimpleNamespace(**{**values, "num_input_tokens": 1, "num_output_tokens": 1, **fields})


def test_time_that_was_over_is_told_and_a_reward_only_of_what_was_judged() -> None:
    agents = _told(episode("agent_timeout"))
    assert (agents["late"], agents["reward"]) == (True, 0.5)
    whole = _told(episode("agent_completed", ok=False, is_timeout=True, errors=["exceeded its deadline"]))
    assert (whole["late"], whole["reward"]) == (True, None)
    assert _told(episode("scoring_timeout")) == {"error": "scoring_timeout"}
    assert _told(episode("error", ok=False, errors=["boom"])) == {"error": "boom"}


def test_an_environment_that_cannot_be_loaded_is_told_of(tmp_path: Path) -> None:
    async def run() -> None:
        await VerifiersEnvironment.start(wanted(tmp_path), tmp_path, python=Path("/bin/false"))

    with pytest.raises(TaskError, match="repeated_words cannot be loaded"):
        asyncio.run(run())


async def _rolled(environment: VerifiersEnvironment, model: ScriptedModel, number: int) -> RolledOut:
    return await environment.roll_out(environment.tasks[number], base_url=model.base_url, model="ours")
