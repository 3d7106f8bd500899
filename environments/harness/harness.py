"""The port of harnesses: a program that lets a model work on a task, over the public HTTP API and nothing else."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, Protocol

from environments.sandboxes.sandbox import Sandbox
from environments.tasks.task import Task

Ending = Literal["done", "budget", "context", "malformed"]
UsedUp = Literal["tokens", "calls", "seconds"]


@dataclass(frozen=True)
class Endpoint:
    """Where the model is asked, and what is told of the asker with every request."""

    base_url: str  # with /v1
    api_key: str | None = field(default=None, repr=False)
    model: str = "onward"
    headers: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Budget:
    """The most that one episode may use. Seconds are of the critical path: calls in parallel count as the longest."""

    tokens: int = 100_000
    calls: int = 100
    critical_path_seconds: float = 600.0
    context_tokens: int = 8_192


@dataclass(frozen=True)
class CallRecord:
    """One tool call that was executed: where it stood, when it ran, and the digest of what came back.

    `group` counts the assistant's messages: calls of one group were asked for together. Times are seconds since the
    Unix epoch."""

    inference_id: str
    call_id: str
    tool: str
    group: int
    started_at: float
    ended_at: float
    succeeded: bool
    output_digest: str
    output_bytes: int


@dataclass(frozen=True)
class HarnessRun:
    """What a harness did on one task: the turns that it asked for, in order, and its calls.

    `policy_versions` are those of each turn's first token: a number for the base policy, `NAME@NUMBER` for another.
    `used_up` says what of the budget was, where that ended it; `summaries` how often the context began anew."""

    ending: Ending
    session_id: str | None
    inference_ids: tuple[str, ...]
    policy_versions: tuple[int | str, ...]
    calls: tuple[CallRecord, ...] = ()
    used_up: UsedUp | None = None
    summaries: int = 0
    prompt_tokens: int = 0
    output_tokens: int = 0
    critical_path_seconds: float = 0.0


class Harness(Protocol):
    """Any harness can take the place of any other in a rollout.

    `folders` are folders of this machine that it needs in the sandbox, by their place inside (see `fit_out`)."""

    name: str
    version: str
    folders: Mapping[str, Path]

    async def work(self, task: Task, sandbox: Sandbox, endpoint: Endpoint, budget: Budget) -> HarnessRun:
        """Work on the task until it is done or the budget is used up.

        Raises InfrastructureFailure where the sandbox or the service fails. The caller ends it by cancelling, at the
        task's own timeout."""
        ...


def fit_out(task: Task, harness: Harness) -> Task:
    """Return the task with a sandbox that has what the harness needs in it."""
    if not harness.folders:
        return task
    return replace(task, spec=replace(task.spec, folders={**task.spec.folders, **harness.folders}))
