"""How long a sandbox is waited for: as the plan says, and what a task starts in it as its own health check says."""

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rollouts_world import HARNESS, Scripted, means, plan_of, task
from sandboxed import require_bubblewrap

from environments.harness.harness import Endpoint, HarnessRun
from environments.rollouts.attempt import Judge, try_episode
from environments.rollouts.episode import EpisodeResult
from environments.rollouts.plan import Patience, TaskSet, episode_of
from environments.sandboxes.bubblewrap.adapter import Bubblewrap
from environments.sandboxes.pool import Pool
from environments.sandboxes.sandbox import Sandbox
from environments.tasks.task import Healthcheck, Task

OPEN_S = 0.5


class Idle(Scripted):
    """Does nothing, at once."""

    async def work(self, task: Task, sandbox: Sandbox, endpoint: Endpoint, *_: Any) -> HarnessRun:
        return HarnessRun("done", endpoint.headers["x-session-id"], (), ())


async def passes(_: Task, sandbox: Sandbox) -> float:
    return 1.0


def tried(folder: Path, check: Healthcheck, judge: Judge = passes) -> EpisodeResult:
    require_bubblewrap()
    own = task("t", healthcheck=check, agent_timeout_seconds=1.0, verifier_timeout_seconds=0.1)
    plan = plan_of(TaskSet("own", (own,)), patience=Patience(open_seconds=OPEN_S, grace_seconds=0.1))

    async def test() -> EpisodeResult:
        async with means(folder / "sandboxes", harness=Idle(), judge=judge) as ready:
            return await try_episode(episode_of("j", HARNESS, "own", own, 0), own, plan, ready)

    return asyncio.run(test())


@pytest.mark.parametrize(
    "check",
    [
        Healthcheck("sleep 1"),
        Healthcheck(
            "echo x >>tries; test $(wc -l <tries) -ge 3", start_period_seconds=60, start_interval_seconds=0.6, retries=1
        ),
    ],
)
def test_a_service_that_is_slow_by_its_own_numbers_is_waited_for(tmp_path: Path, check: Healthcheck) -> None:
    result = tried(tmp_path, check)
    assert (result.verdict, result.reward) == ("judged", 1.0), result.why


def test_a_service_that_does_not_get_well_in_its_own_time_is_what_failed(tmp_path: Path) -> None:
    result = tried(tmp_path, Healthcheck("exit 1", interval_seconds=0.3))
    assert (result.verdict, result.part) == ("infrastructure", "service"), result.why


def test_tests_may_wait_for_another_sandboxs_service_as_long(tmp_path: Path) -> None:
    async def slow(_: Task, sandbox: Sandbox) -> float:
        await asyncio.sleep(2.5)  # longer than 3 * (0.1 + 0.1) + OPEN_S + 1
        return 1.0

    result = tried(tmp_path, Healthcheck("true"), slow)
    assert (result.verdict, result.reward) == ("judged", 1.0), result.why


def test_a_place_that_is_not_free_in_time_is_what_failed_and_is_not_lost(tmp_path: Path) -> None:
    require_bubblewrap()
    own = task("t", agent_timeout_seconds=60.0)
    plan = plan_of(TaskSet("own", (own,)), patience=Patience(open_seconds=OPEN_S))
    episode = episode_of("j", HARNESS, "own", own, 0)

    async def test() -> list[EpisodeResult]:
        pool = Pool(Bubblewrap(tmp_path / "sandboxes"), most_open=1)
        async with means(tmp_path / "others", sandboxes=pool, harness=Idle(), judge=passes) as ready:
            async with await pool.open(own.spec):
                full = await try_episode(episode, own, plan, ready)
            patient = replace(plan, patience=Patience())
            free = await try_episode(replace(episode, attempt=2), own, patient, ready)
            await pool.close()
            return [full, free]

    full, free = asyncio.run(test())
    assert (full.verdict, full.part, full.reward) == ("infrastructure", "sandbox", None)
    assert full.why == "sandbox: it was not opened within 0.5 s"
    assert (free.verdict, free.reward) == ("judged", 1.0), free.why
