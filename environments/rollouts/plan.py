"""A plan of rollouts: which tasks are worked on, how often, how many at once, and what counts."""

import os
import uuid
from dataclasses import dataclass, field
from typing import Final, Literal

from environments.errors import TaskError
from environments.harness.harness import Budget, Endpoint
from environments.rollouts.episode import Episode
from environments.tasks.task import Task

_EPISODES: Final = uuid.UUID("b1f0c6de-6a0e-5a53-9d3f-2c7f4b9f3d11")  # names episodes (RFC 9562, v5)


@dataclass(frozen=True)
class TaskSet:
    """Tasks under one name; `share` is its part of the episodes, beside other sets'.

    `workload` is that of its turns, by which the learner mixes; None: that which the endpoint's headers name."""

    name: str
    tasks: tuple[Task, ...]
    share: float = 1.0
    workload: str | None = None

    def __post_init__(self) -> None:
        """Raise TaskError for a set in which two tasks have one name, or none is."""
        names = [task.name for task in self.tasks]
        if not names:
            raise TaskError(f"{self.name}: there is no task")
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise TaskError(f"{self.name}: {', '.join(twice)}: more than one task has that name")


@dataclass(frozen=True)
class Patience:
    """How long is waited for what, and how often an infrastructure failure is tried again, in seconds."""

    open_seconds: float = 60.0  # of a sandbox, beside what its task's health check may take
    close_seconds: float = 30.0
    grace_seconds: float = 30.0  # that a verifier has beyond the task's own timeout, before it counts as broken
    attempts: int = 4  # at one episode; those that ended with the runner itself do not count
    backoff_seconds: float = 1.0  # before the second attempt; doubled before each further one
    longest_backoff_seconds: float = 60.0


@dataclass(frozen=True)
class RolloutPlan:
    """What a run of rollouts does.

    `tries` is the number of episodes of each task, None: on and on. `parallel` is the number of episodes under way.
    `out_of_time` says whether work that the task's clock ended is left out of rewards, or judged as it stands."""

    sets: tuple[TaskSet, ...]
    harness: str  # name@version
    endpoint: Endpoint
    budget: Budget = field(default_factory=Budget)
    tries: int | None = 1
    parallel: int = field(default_factory=lambda: os.cpu_count() or 1)
    out_of_time: Literal["leave_out", "judge"] = "leave_out"
    patience: Patience = Patience()

    def __post_init__(self) -> None:
        """Raise TaskError for two sets of one name."""
        names = [each.name for each in self.sets]
        if len(set(names)) < len(names):
            raise TaskError(f"task sets: two have the same name, among {', '.join(sorted(names))}")

    @property
    def episodes(self) -> int | None:
        """How many there will be; None: no end."""
        return None if self.tries is None else self.tries * sum(len(each.tasks) for each in self.sets)


def episode_of(journal_id: str, harness: str, environment: str, task: Task, number: int) -> Episode:
    """Return the episode of that number, from 0, of a task. The same journal always gives it the same id."""
    identity = (journal_id, environment, task.name, task.digest, harness, str(number))
    return Episode(
        episode_id=str(uuid.uuid5(_EPISODES, "\0".join(identity))),
        task=task.name,
        task_digest=task.digest,
        harness=harness,
        environment=environment,
    )


def episode_headers(plan: RolloutPlan, episode: Episode) -> dict[str, str]:
    """Return what every request of an attempt says of it."""
    headers = {
        **plan.endpoint.headers,
        "x-session-id": episode.session_id,
        "x-onward-environment": "simulated",
        "x-onward-harness": episode.harness,
    }
    workload = next((each.workload for each in plan.sets if each.name == episode.environment), None)
    return headers if workload is None else {**headers, "x-onward-workload": workload}
