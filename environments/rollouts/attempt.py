"""One attempt at an episode: a sandbox is opened, the harness works in it, and the tests judge what it did.

Three ends are told apart. `judged`: the harness came to an end, whichever, and the tests gave a number. `out_of_time`:
the task's own clock ran out first; that clock also runs while the machine is busy with others, so it is no judgement of
the model, whose own limits are the budget's. `infrastructure`: something else failed, which is named."""

import asyncio
import errno
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Final

from environments.errors import InfrastructureFailure, NothingTold, OutOfTime
from environments.harness.harness import Harness, HarnessRun, fit_out
from environments.rollouts.episode import Episode, EpisodeResult, Verdict
from environments.rollouts.plan import RolloutPlan, episode_headers
from environments.sandboxes.sandbox import Sandbox, Sandboxes, SandboxSpec
from environments.tasks.opening import open_sandbox
from environments.tasks.task import Task

Judge = Callable[[Task, Sandbox], Awaitable[float]]
"""Runs a task's tests in the sandbox and returns the reward. Raises InfrastructureFailure where they did not run."""
_LONGEST_WHY: Final = 2000  # characters
_FULL: Final = (errno.ENOSPC, errno.EDQUOT)
logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Means:
    """What an attempt is made with. `expect` begins to make a sandbox for the next who opens one of that spec."""

    sandboxes: Sandboxes
    harness: Harness
    judge: Judge
    expect: Callable[[SandboxSpec], None] = lambda spec: None


async def try_episode(episode: Episode, task: Task, plan: RolloutPlan, means: Means) -> EpisodeResult:
    """Make one attempt, and return how it ended. What the environment may raise is in the result."""
    started_at = time.time()
    done = _Done()
    try:
        async with _opened(task, plan, means) as sandbox:
            await _work_and_judge(episode, task, sandbox, plan, means, done)
    except InfrastructureFailure as failure:
        return _failed(episode, done.work, started_at, failure.part, str(failure))
    except OSError as error:  # of this machine: what a command inside meets is in its result
        part = "disk" if error.errno in _FULL else "machine"
        return _failed(episode, done.work, started_at, part, f"{part}: {error}")
    verdict: Verdict = "judged" if done.late is None else "out_of_time"
    return EpisodeResult(episode, verdict, done.reward, done.work, started_at, time.time(), why=done.late or "")


def _failed(episode: Episode, work: HarnessRun | None, started_at: float, part: str, why: str) -> EpisodeResult:
    why = why[:_LONGEST_WHY]
    return EpisodeResult(episode, "infrastructure", None, work, started_at, time.time(), part=part, why=why)


@dataclass
class _Done:
    """What an attempt has come to so far."""

    work: HarnessRun | None = None
    late: str | None = None
    reward: float | None = None


async def _work_and_judge(
    episode: Episode, task: Task, sandbox: Sandbox, plan: RolloutPlan, means: Means, done: _Done
) -> None:
    try:
        done.work = await _work(episode, task, sandbox, plan, means)
    except OutOfTime as late:
        done.late = str(late)
        if plan.out_of_time == "leave_out":
            return
    try:
        done.reward = await _judge(task, sandbox, plan, means)
    except NothingTold:
        if done.late is None:
            raise  # else its environment was cut off before it could judge: it is left out


async def _judge(task: Task, sandbox: Sandbox, plan: RolloutPlan, means: Means) -> float:
    """Return what the tests gave, in the time of two looks at the work and of one at the task's own solution."""
    patience, one_look = plan.patience, task.verifier_timeout_seconds + sum(hook.timeout_seconds for hook in task.hooks)
    most_seconds = 3 * (one_look + patience.grace_seconds) + _open_seconds(task, plan) + task.agent_timeout_seconds
    async with _within(most_seconds, "verifier", "the tests did not end"):
        return await means.judge(task, sandbox)


async def _work(episode: Episode, task: Task, sandbox: Sandbox, plan: RolloutPlan, means: Means) -> HarnessRun:
    """Let the harness work. Raises OutOfTime once the task's clock has run out."""
    endpoint = replace(plan.endpoint, headers=episode_headers(plan, episode))
    clock = asyncio.timeout(task.agent_timeout_seconds)
    try:
        async with clock:
            return await means.harness.work(task, sandbox, endpoint, plan.budget)
    except TimeoutError as error:
        if not clock.expired():
            raise InfrastructureFailure("harness", f"it gave up waiting for something: {error!r}") from error
        raise OutOfTime(f"the task's {task.agent_timeout_seconds:g} s for an agent were over") from error


@asynccontextmanager
async def _opened(task: Task, plan: RolloutPlan, means: Means) -> AsyncIterator[Sandbox]:
    async with _within(_open_seconds(task, plan), "sandbox", "it was not opened"):
        sandbox = await open_sandbox(fit_out(task, means.harness), means.sandboxes)
    try:
        yield sandbox
    finally:
        await _closed(sandbox, plan.patience.close_seconds)


def _open_seconds(task: Task, plan: RolloutPlan) -> float:
    """Return how long a sandbox may take to open; a service in it is as slow as its own health check says it may be."""
    return plan.patience.open_seconds + (task.healthcheck.longest_seconds if task.healthcheck is not None else 0.0)


async def _closed(sandbox: Sandbox, seconds: float) -> None:
    """Close a sandbox. One that does not close takes nothing from what was done in it, but is told of."""
    try:
        async with asyncio.timeout(seconds):
            await sandbox.close()
    except (TimeoutError, InfrastructureFailure, OSError) as error:
        logger.warning("a sandbox was not closed within %g s: %r", seconds, error)


@asynccontextmanager
async def _within(seconds: float, part: str, what: str) -> AsyncIterator[None]:
    """Raise InfrastructureFailure of that part if this takes longer."""
    clock = asyncio.timeout(seconds)
    try:
        async with clock:
            yield
    except TimeoutError as error:
        raise InfrastructureFailure(part, f"{what} within {seconds:g} s" if clock.expired() else str(error)) from error
