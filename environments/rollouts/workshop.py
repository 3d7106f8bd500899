"""What a machine needs to make attempts: the tasks, ready for sandboxes, and a harness that works on them.

It is described by plain values, so that every node of a cluster can make its own."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from environments.errors import TaskError
from environments.harness.agent import FOR_LINES, Agent
from environments.harness.agent import HarnessSettings as AgentSettings
from environments.harness.harness import Harness
from environments.harness.others.guest import Guest
from environments.harness.others.known import mini_swe_agent, opencode
from environments.harness.others.oracle import Oracle
from environments.harness.others.verifiers import VerifiersHarness
from environments.rollouts.attempt import Means
from environments.rollouts.plan import TaskSet
from environments.sandboxes.bubblewrap.adapter import Bubblewrap
from environments.sandboxes.pool import Pool
from environments.sandboxes.sandbox import Sandbox
from environments.tasks.adapters.verifiers_process import Wanted
from environments.tasks.adapters.verifiers_settings import environment_tasks, stands_for_environment, wanted_of
from environments.tasks.images.image import Images
from environments.tasks.preparing import Lent, images_of
from environments.tasks.sources import ready_tasks
from environments.tasks.task import Task
from environments.tasks.verifying import verify

_OF_VERIFIERS: Final = "verifiers"
_OF_AN_ATTEMPT: Final = 3  # sandboxes at once: the agent's, one with other work for the tests, and the tests' own


@dataclass(frozen=True)
class Source:
    """Where the tasks of a set lie: folders of tasks, of one task, or with the file of a library's questions.

    The harness `verifiers` works on folders with a file of that library, and no other harness does."""

    name: str
    folders: tuple[Path, ...]
    share: float = 1.0
    workload: str | None = None


@dataclass(frozen=True)
class Workshop:
    """A description of what attempts are made with.

    `folder` keeps images and what sandboxes share; `variables`, by name, and `network` are lent to tasks."""

    sources: tuple[Source, ...]
    folder: Path
    harness: str = "onward"
    harness_folder: Path | None = None  # of one that others wrote
    workload: str = "agent"
    images: Mapping[str, str] = field(default_factory=dict)
    variables: tuple[str, ...] = ()
    network: bool = False

    @property
    def lent(self) -> Lent:
        """What tasks have of the machine on which this is asked: a cluster is told the variables' names alone."""
        return Lent({name: os.environ[name] for name in self.variables if name in os.environ}, self.network)


async def task_sets(workshop: Workshop) -> tuple[TaskSet, ...]:
    """Read all tasks and prepare their images. Raises TaskError, InfrastructureFailure where an image cannot be had."""
    images = await images_of(workshop.folder / "images", workshop.images)
    return tuple([await _task_set(source, images, workshop) for source in workshop.sources])


async def _task_set(source: Source, images: Images, workshop: Workshop) -> TaskSet:
    if workshop.harness == _OF_VERIFIERS:
        found = [await environment_tasks(wanted_of(each), workshop.folder) for each in _environments(source)]
        tasks = [task for each in found for task in each]
    else:
        tasks = await ready_tasks(source.folders, images, workshop.lent)
    return TaskSet(source.name, tuple(tasks), source.share, source.workload)


def _environments(source: Source) -> tuple[Path, ...]:
    for folder in source.folders:
        if not stands_for_environment(folder):
            raise TaskError(f"{folder}: the harness {_OF_VERIFIERS} works on folders with a verifiers.toml alone")
    return source.folders


def _wanted(workshop: Workshop) -> list[Wanted]:
    """Return the environments of all sets. Raises TaskError for two folders of one name."""
    wanted = [wanted_of(folder) for source in workshop.sources for folder in _environments(source)]
    names = [each.name for each in wanted]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise TaskError(f"{', '.join(twice)}: more than one folder with a verifiers.toml has that name")
    return wanted


def harness_of(workshop: Workshop) -> Harness:
    """Return the harness of that name.

    Raises TaskError where it is not known, InfrastructureFailure where it is not installed."""
    match workshop.harness:
        case "onward":
            return Agent(AgentSettings(workload=workshop.workload))
        case "onward-lines":
            return Agent(replace(FOR_LINES, workload=workshop.workload))
        case "oracle":
            return Oracle()
        case "mini-swe-agent":
            return Guest(mini_swe_agent(_installed(workshop)), workshop.workload)
        case "opencode":
            return Guest(opencode(_installed(workshop)), workshop.workload)
        case "verifiers":
            return VerifiersHarness(_wanted(workshop), workshop.folder, workshop.workload)
    raise TaskError(f"harness: {workshop.harness} is not known here")


async def harness_name(workshop: Workshop) -> str:
    """Return the harness as NAME@VERSION. Raises as `harness_of`."""
    harness = harness_of(workshop)
    await close_harness(harness)
    return f"{harness.name}@{harness.version}"


async def close_harness(harness: Harness) -> None:
    """Release what a harness of others keeps on this machine."""
    if isinstance(harness, Guest):
        harness.close()
    if isinstance(harness, VerifiersHarness):
        await harness.close()


def _installed(workshop: Workshop) -> Path:
    if workshop.harness_folder is None:
        raise TaskError(f"harness_folder: says where {workshop.harness} is installed")
    return workshop.harness_folder.resolve()


def means_of(workshop: Workshop, parallel: int) -> Means:
    """Return the means of this machine for so many attempts at once.

    `sandboxes` is to be closed when they are no longer used."""
    sandboxes = Pool(Bubblewrap(workshop.folder / "sandboxes"), most_open=_OF_AN_ATTEMPT * parallel)

    async def judge(task: Task, sandbox: Sandbox) -> float:
        return (await verify(task, sandbox, sandboxes)).reward

    return Means(sandboxes, harness_of(workshop), judge, sandboxes.expect)
