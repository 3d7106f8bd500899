"""One try of one version at one task, as an eval case: the harness works, the tests judge, and rules look at the files.

What is no doing of the version's is no result: it raises NoTrial."""

import uuid
from dataclasses import dataclass
from typing import Final

from environments.cases.quality import flaws_of
from environments.cases.rules import Rules
from environments.errors import EnvironmentFault
from environments.harness.agent import Agent, HarnessSettings
from environments.harness.harness import Budget, Endpoint, HarnessRun
from environments.harness.model import Converse
from environments.rollouts.attempt import Means, try_episode
from environments.rollouts.episode import Episode
from environments.rollouts.plan import RolloutPlan
from environments.sandboxes.sandbox import Sandbox, Sandboxes
from environments.tasks.task import Task
from environments.tasks.verifying import verify

_ATTEMPTS: Final = 2  # where a sandbox, the disk or the service fails: what fails twice is told
_ENVIRONMENT: Final = "evals"


class NoTrial(EnvironmentFault):
    """The version was not tried: something else failed, or the task's own clock ended it; the message says what."""


@dataclass(frozen=True)
class Trial:
    """What is tried. `rules` are asked of the files beside the tests; None: nothing is."""

    task: Task
    settings: HarnessSettings
    budget: Budget
    rules: Rules | None = None


@dataclass(frozen=True)
class Tried:
    """How it went: what the tests gave, in words what of the rules was not kept, and what the harness did."""

    reward: float
    flaws: tuple[str, ...]
    work: HarnessRun


async def try_once(trial: Trial, endpoint: Endpoint, sandboxes: Sandboxes, converse: Converse | None = None) -> Tried:
    """Have a version work on a task, at the endpoint or as `converse` asks it. Raises NoTrial."""
    agent = Agent(trial.settings, converse)
    flaws: list[str] = []

    async def judge(task: Task, sandbox: Sandbox) -> float:
        flaws[:] = () if trial.rules is None else await flaws_of(task, sandbox, sandboxes, trial.rules)
        return (await verify(task, sandbox, sandboxes)).reward

    plan, identity = RolloutPlan((), f"{agent.name}@{agent.version}", endpoint, trial.budget), str(uuid.uuid4())
    for attempt in range(1, _ATTEMPTS + 1):
        task = trial.task
        episode = Episode(identity, task.name, task.digest, plan.harness, _ENVIRONMENT, attempt)
        result = await try_episode(episode, task, plan, Means(sandboxes, agent, judge))
        if result.reward is not None and result.work is not None:
            return Tried(result.reward, tuple(flaws), result.work)
        if result.verdict == "out_of_time":
            break
    raise NoTrial(result.why)
