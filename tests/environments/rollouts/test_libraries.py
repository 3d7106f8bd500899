"""Tasks of other libraries in a task set: they are named by a folder, and worked on like any."""

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import aiohttp
import psutil
import pytest
from aiohttp import web
from kept_images import KEPT
from multidict import CIMultiDict
from processes import words_of
from repeated_words_module import MODULE, NAME
from rollouts_world import Told, Watched, means, plan_of, task
from sandboxed import require_bubblewrap
from scripted_model import ScriptedModel

from environments.errors import TaskError
from environments.harness.harness import Endpoint
from environments.harness.others.verifiers import VerifiersHarness
from environments.rollouts.attempt import try_episode
from environments.rollouts.episode import EpisodeResult
from environments.rollouts.journal import RolloutJournal
from environments.rollouts.plan import TaskSet, episode_of
from environments.rollouts.run import executing, run_rollouts
from environments.rollouts.workshop import Source, Workshop, harness_name, task_sets
from environments.sandboxes.sandbox import Sandbox
from environments.tasks.adapters.verifiers_process import RolledOut, VerifiersEnvironment, Wanted
from environments.tasks.public.interpreters import uv_program
from environments.tasks.task import Task
from environments.tasks.verifying import verify

QUESTIONS = 'dataset = "leg_counting"\nsize = 2\nseed = 7\n'
ENVIRONMENT = f"""
paths = ["."]
[environment.taskset]
id = "{NAME}"
turns = 2
[environment.agent]
harness = {{ id = "null" }}
runtime = {{ type = "subprocess" }}
"""


def folder_of(folder: Path, files: Mapping[str, str]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name).write_text(text)
    return folder


def workshop(*folders: Path, harness: str = "onward") -> Workshop:
    return Workshop((Source("own", folders),), KEPT, harness, images={"*": "machine"})


def test_questions_are_tasks_of_the_set(tmp_path: Path) -> None:
    pytest.importorskip("reasoning_gym")
    legs = folder_of(tmp_path / "legs", {"reasoning-gym.toml": QUESTIONS})
    (found,) = asyncio.run(task_sets(workshop(legs)))
    assert [task.name for task in found.tasks] == ["reasoning-gym/leg_counting/0", "reasoning-gym/leg_counting/1"]


def test_an_environment_needs_its_own_harness_and_that_needs_environments(tmp_path: Path) -> None:
    legs = folder_of(tmp_path / "legs", {"reasoning-gym.toml": QUESTIONS})
    words = folder_of(tmp_path / "words", {"verifiers.toml": ENVIRONMENT})
    with pytest.raises(TaskError, match=r"legs: the harness verifiers works on folders with a verifiers\.toml alone"):
        asyncio.run(task_sets(workshop(legs, harness="verifiers")))
    with pytest.raises(TaskError, match=r"words: no task\.toml here"):
        asyncio.run(task_sets(workshop(words)))
    folder_of(words, {"verifiers.toml": "most_tasks = 0\n"})
    with pytest.raises(TaskError, match=r"verifiers\.toml: environment: Field required; most_tasks: Input should be"):
        asyncio.run(task_sets(workshop(words, harness="verifiers")))
    twins = [folder_of(tmp_path / each / "twin", {"verifiers.toml": ENVIRONMENT}) for each in ("words", "more")]
    with pytest.raises(TaskError, match=r"twin: more than one folder"):
        asyncio.run(harness_name(workshop(*twins, harness="verifiers")))


def test_an_environment_makes_its_episodes_and_the_service_is_told(tmp_path: Path) -> None:
    """Its process is killed in between, and is there again for the next episode."""
    require_bubblewrap()
    if uv_program() is None:
        pytest.skip("uv is not installed, by which verifiers starts its harness")
    words = folder_of(tmp_path / "words", {"verifiers.toml": ENVIRONMENT, f"{NAME}.py": MODULE})
    model, told = ScriptedModel(), Told()
    attempts = asyncio.run(_rolled(workshop(words, harness="verifiers"), model, told, tmp_path))
    results = [each for each in attempts if each.verdict == "judged"]  # one may have met the process at its end
    assert [each.reward for each in results] == [1.0] * 2
    assert {each.episode.task for each in results} == {"verifiers/words/0", "verifiers/words/1"}
    assert {each.episode.harness for each in results} == {"verifiers@0.4.0"}
    sessions = {each.episode.session_id for each in results}
    asked = [CIMultiDict(headers) for headers, _ in model.asked]
    assert {headers["x-session-id"] for headers in asked} == sessions
    assert {headers["authorization"] for headers in asked} == {"Bearer key-of-ours"}
    assert {headers["x-onward-environment"] for headers in asked} == {"simulated"}
    assert {each.work.inference_ids for each in results if each.work} == {("turn-1", "turn-2"), ("turn-3", "turn-4")}
    assert [each.work and each.work.output_tokens for each in results] == [6, 6]
    assert {each["session_id"]: each["value"] for each in told.of("task_reward")} == dict.fromkeys(sessions, 1.0)


class Rolls:
    """An environment that rolls out at once, or waits until it is given up; with `asks`, of a service that is away."""

    has_ended = False

    def __init__(self, rolled: RolledOut | None, *, asks: bool = False) -> None:
        self._rolled, self._asks = rolled, asks
        self.waits = rolled is None

    async def roll_out(self, task: Task, *, base_url: str, model: str) -> RolledOut:
        if self._asks:
            async with aiohttp.ClientSession() as http, http.post(f"{base_url}/chat/completions", json={}) as answer:
                assert answer.status == 503
        if self._rolled is None:
            await asyncio.sleep(60)
        assert self._rolled is not None
        return self._rolled


def tried(environment: Rolls, folder: Path, monkeypatch: pytest.MonkeyPatch) -> EpisodeResult:
    """Try one episode whose late work is to be judged."""

    async def start(*_: object) -> Rolls:
        return environment

    monkeypatch.setattr(VerifiersEnvironment, "start", start)
    harness = VerifiersHarness([Wanted("words", {})], folder)
    seconds = 0.5 if environment.waits else 20.0  # what is to be late at once; what comes is given its time
    late = task("t", agent_timeout_seconds=seconds, metadata={"environment": "words"})
    plan = plan_of(TaskSet("own", (late,)), out_of_time="judge")

    async def run() -> EpisodeResult:
        async with means(folder, harness=harness) as ready:

            async def judge(given: Task, sandbox: Sandbox) -> float:
                return (await verify(given, sandbox, ready.sandboxes)).reward

            return await try_episode(
                episode_of("journal", plan.harness, "own", late, 0), late, plan, replace(ready, judge=judge)
            )

    return asyncio.run(run())


@pytest.mark.parametrize(
    ("rolled", "reward"),
    [(RolledOut(0.5, {}, 1, 1, 1, True), 0.5), (RolledOut(None, {}, 1, 1, 1, True), None), (None, None)],
)
def test_late_work_has_the_reward_that_its_environment_told_or_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rolled: RolledOut | None, reward: float | None
) -> None:
    require_bubblewrap()
    result = tried(Rolls(rolled), tmp_path, monkeypatch)
    assert (result.verdict, result.part, result.reward) == ("out_of_time", None, reward)


def test_a_rollout_without_answers_of_the_service_is_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    require_bubblewrap()
    result = tried(Rolls(RolledOut(0.0, {}, 1, 1, 1, False), asks=True), tmp_path, monkeypatch)
    assert (result.verdict, result.part, result.reward) == ("infrastructure", "service", None)


def end_environment() -> None:
    """Kill the process in which the environment was loaded, where there is one."""
    for each in psutil.Process().children():  # none, after an attempt that met it at its end
        if "verifiers_worker.py" in " ".join(words_of(each)):
            with suppress(psutil.NoSuchProcess):
                each.kill()


async def _rolled(given: Workshop, model: ScriptedModel, told: Told, folder: Path) -> list[EpisodeResult]:
    app = web.Application()
    app.router.add_post("/v1/feedback", told.take)
    app.router.add_get("/readyz", told.ready)
    app.router.add_post("/v1/chat/completions", model.answer)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    endpoint = Endpoint(f"http://127.0.0.1:{runner.addresses[0][1]}/v1", "key-of-ours")
    sets: tuple[TaskSet, ...] = await task_sets(given)
    plan = replace(plan_of(*sets, endpoint=endpoint, parallel=1), harness=await harness_name(given))
    journal = RolloutJournal(folder / "journal.db")
    try:
        async with executing(plan, given) as place:
            watched = Watched(on_end=lambda _: end_environment())
            await run_rollouts(plan, journal, place, watched, None, asyncio.Event())
        return list(journal.attempts(10))
    finally:
        journal.close()
        await runner.cleanup()
