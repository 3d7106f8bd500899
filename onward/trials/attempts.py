"""Agents at work on the tasks of a suite, for one version: the answers to agentic cases.

An agent works in a sandbox, with the harness of rollouts, and asks the version over an API of its own. Its work is
judged by the task's tests, and by whether it repeats what the repository had. What the machine does wrong is tried
again, and never counts against the version."""

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from core.codec import plain
from core.errors import ConfigError
from core.ids import PolicyRef
from core.ports import Policy
from environments.errors import InfrastructureFailure, TaskError
from environments.harness.agent import Agent
from environments.harness.agent import Settings as AgentSettings
from environments.harness.harness import Budget, Endpoint, Harness
from environments.rollouts.attempt import Means, try_episode
from environments.rollouts.episode import EpisodeResult
from environments.rollouts.plan import Plan, episode_of
from environments.sandboxes.bubblewrap.adapter import Bubblewrap
from environments.sandboxes.sandbox import Sandbox, Sandboxes
from environments.tasks.harbor.folder import HarborTask, read_task
from environments.tasks.judging.repetition import judge
from environments.tasks.preparing import images_of, prepare
from environments.tasks.task import Task
from onward.trials.version_service import VersionAddress
from serving.evals.cases import CannotRun, Suite
from serving.evals.run import Attempter
from serving.evals.task_cases import TaskCase

_TRIES: Final = 3  # of one case, where the machine failed
_SUITE: Final = "suite"  # the environment of the episodes

Serve = Callable[[Policy, PolicyRef], AbstractAsyncContextManager[VersionAddress]]
"""Serves one version over the API (`version_service.serve_version`)."""


@dataclass(frozen=True)
class Workplace:
    """Where agents work. `folder` keeps images and what sandboxes share; `images` is `[rollouts.images]`."""

    folder: Path
    images: Mapping[str, str] = field(default_factory=dict)
    budget: Budget = field(default_factory=Budget)
    at_once: int = 2
    harness: Harness = field(default_factory=lambda: Agent(AgentSettings(workload=_SUITE, temperature=0.0)))


class Attempts:
    """The attempts at a suite's tasks."""

    def __init__(self, suite: Suite, workplace: Workplace, serve: Serve) -> None:
        """Read the tasks. Raises ConfigError naming the file and the field that cannot be honoured here."""
        self._workplace, self._serve = workplace, serve
        self._read = {case.name: _read(case) for case in suite.cases if isinstance(case, TaskCase)}

    @asynccontextmanager
    async def opened(self, policy: Policy, version: PolicyRef) -> AsyncIterator[Attempter]:
        """Open what lets agents work with one version, in the running event loop."""
        sandboxes = Bubblewrap(self._workplace.folder / "sandboxes")
        try:
            async with self._serve(policy, version) as address:
                yield _Attempts(self._read, self._workplace, sandboxes, address, version).attempt
        finally:
            await sandboxes.close()

    @asynccontextmanager
    async def asking(self, address: VersionAddress, headers: Mapping[str, str]) -> AsyncIterator[Attempter]:
        """Open what lets agents work with whatever version answers at an address; it is sent the headers, too."""
        sandboxes = Bubblewrap(self._workplace.folder / "sandboxes")
        try:
            yield _Attempts(self._read, self._workplace, sandboxes, address, None, headers).attempt
        finally:
            await sandboxes.close()


class _Attempts:
    """The attempts of one version, or of whichever answers where none is named."""

    def __init__(
        self,
        tasks: Mapping[str, HarborTask],
        workplace: Workplace,
        sandboxes: Sandboxes,
        address: VersionAddress,
        version: PolicyRef | None,
        headers: Mapping[str, str] = {},
    ) -> None:
        self._tasks, self._workplace, self._version = tasks, workplace, version
        self._free = asyncio.Semaphore(workplace.at_once)
        self._preparing = asyncio.Lock()  # images are built one after another
        self._plan = Plan(
            sets=(),
            harness=f"{workplace.harness.name}@{workplace.harness.version}",
            endpoint=Endpoint(address.base_url, address.api_key, address.model, dict(headers)),
            budget=workplace.budget,
            out_of_time="judge",
        )

        async def judged(task: Task, sandbox: Sandbox) -> float:
            return (await judge(task, sandbox, sandboxes)).reward

        self._means = Means(sandboxes, workplace.harness, judged)

    async def attempt(self, case: TaskCase) -> float:
        async with self._free:
            failures: list[str] = []
            for number in range(_TRIES):
                try:
                    result = await self._tried(case, number)
                except (InfrastructureFailure, OSError) as failure:  # the latter while images are prepared
                    failures.append(str(failure))
                    continue
                if result.verdict != "infrastructure" and result.reward is not None:
                    return min(1.0, max(0.0, result.reward))
                failures.append(result.why)
            raise CannotRun(_told(failures))

    async def _tried(self, case: TaskCase, number: int) -> EpisodeResult:
        async with self._preparing:
            try:
                images = await images_of(self._workplace.folder / "images", self._workplace.images)
                task = await prepare(self._tasks[case.name], images)
            except TaskError as error:
                raise CannotRun(str(error)) from error
        episode = episode_of(uuid.uuid4().hex, self._plan.harness, _SUITE, task, number)
        result = await try_episode(episode, task, self._plan, self._means)
        spoke = set(result.work.policy_versions) if result.work is not None else set()
        if self._version is not None and spoke - {plain(self._version)}:
            raise InfrastructureFailure("service", f"version {self._version} was asked, and others answered: {spoke}")
        return result


def _read(case: TaskCase) -> HarborTask:
    try:
        return read_task(case.folder)
    except TaskError as error:
        raise ConfigError(str(error)) from error


def _told(failures: Sequence[str]) -> str:
    return f"{len(failures)} attempts failed, not by the version's doing: {'; '.join(dict.fromkeys(failures))}"
