"""Makes a task that was read ready to be worked on: its image, and the sandboxes of the agent and of the tests."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from environments.errors import TaskError
from environments.sandboxes.images.images import Image
from environments.sandboxes.sandbox import Limits, SandboxSpec
from environments.tasks.harbor.folder import HarborTask
from environments.tasks.harbor.schema import ArtifactSettings, EnvironmentSettings, HealthcheckSettings
from environments.tasks.harbor.values import filled
from environments.tasks.images.bases import Bases
from environments.tasks.images.build import LocalBuilder
from environments.tasks.images.engine import DockerEngine
from environments.tasks.images.image import Images, Recipe
from environments.tasks.task import Artifact, Healthcheck, Hook, Task

AGENT_TIMEOUT_SECONDS = 600.0  # where a task states none
_MEGABYTE = 1 << 20


@dataclass(frozen=True)
class Lent:
    """What tasks that ask for it have of this machine: variables by their names, and its network.

    Nothing, where whoever runs them does not say so: a task that has both can send any key anywhere."""

    variables: Mapping[str, str] = field(default_factory=dict)
    network: bool = False


async def images_of(folder: Path, stands_for: Mapping[str, str]) -> Images:
    """Return what prepares images on this machine: its Docker engine, or else bases.

    `stands_for` names these, by patterns of references; images are kept below `folder`."""
    engine = DockerEngine(folder / "unpacked")
    return engine if await engine.answers() else LocalBuilder(folder / "layers", Bases(stands_for, folder / "roots"))


async def prepare(task: HarborTask, images: Images, lent: Lent | None = None) -> Task:
    """Return a task ready for sandboxes, its images prepared.

    Raises TaskError for what the task wants and is not lent, InfrastructureFailure where an image cannot be had."""
    lent = lent or Lent()
    require_lent(task, lent)
    settings = task.settings
    image = await images.prepare(_recipe(task, settings.environment, task.folder / "environment"))
    verifier_spec = None
    if settings.verifier.separate:
        environment = settings.verifier.environment or settings.environment
        recipe = _recipe(task, environment, _verifier_context(task))
        verifier_spec = _spec(task, environment, await images.prepare(recipe), lent)
    return Task(
        name=task.name,
        instruction=task.instruction,
        digest=task.digest,
        spec=_spec(task, settings.environment, image, lent),
        agent_timeout_seconds=settings.agent.timeout_sec or AGENT_TIMEOUT_SECONDS,
        verifier_timeout_seconds=settings.verifier.timeout_sec,
        image=image.digest,
        folder=task.folder,
        tests=task.tests,
        solution=task.solution,
        solution_environment=_filled(task, "solution.env", settings.solution.env, lent),
        verifier_environment=_filled(task, "verifier.env", settings.verifier.env, lent),
        verifier_spec=verifier_spec,
        artifacts=tuple(_artifact(one) for one in settings.artifacts),
        hooks=tuple(Hook(one.command, one.timeout_sec) for one in settings.verifier.collect),
        healthcheck=_healthcheck(settings.environment.healthcheck),
        metadata=_metadata(task),
    )


def require_lent(task: HarborTask, lent: Lent) -> None:
    """Raise TaskError for what a task, or its verifier, wants and is not lent."""
    settings = task.settings
    for environment in (settings.environment, settings.verifier.environment):
        if environment is None:
            continue
        if environment.networked and not lent.network:
            raise TaskError(f"{task.folder}/task.toml: it wants a network, which would be this machine's: lend it one")
        _filled(task, "environment.env", environment.env, lent)
    _filled(task, "solution.env", settings.solution.env, lent)
    _filled(task, "verifier.env", settings.verifier.env, lent)


def _recipe(task: HarborTask, environment: EnvironmentSettings, context: Path) -> Recipe:
    dockerfile = context / "Dockerfile"
    return Recipe(
        context,
        dockerfile if dockerfile.is_file() else None,
        environment.docker_image,
        environment.build_timeout_sec,
    )


def _verifier_context(task: HarborTask) -> Path:
    """Return the folder of a separate verifier's Dockerfile: the tests', where they have one, else the agent's."""
    own = (task.tests / "Dockerfile").is_file()
    return task.tests if own else task.folder / "environment"


def _spec(task: HarborTask, given: EnvironmentSettings, image: Image, lent: Lent) -> SandboxSpec:
    usual = Limits()
    limits = Limits(
        memory_bytes=given.memory_mb * _MEGABYTE if given.memory_mb else usual.memory_bytes,
        cpus=given.cpus or usual.cpus,
        disk_bytes=given.storage_mb * _MEGABYTE if given.storage_mb else usual.disk_bytes,
    )
    return SandboxSpec(
        workdir=given.workdir or image.workdir,
        root=image.root,
        layers=image.layers,
        environment={**image.environment, **_filled(task, "environment.env", given.env, lent)},
        network=given.networked,
        limits=limits,
    )


def _filled(task: HarborTask, table: str, given: Mapping[str, str], lent: Lent) -> dict[str, str]:
    values = {}
    for name, template in given.items():
        try:
            values[name] = filled(template, lent.variables)
        except ValueError as error:
            raise TaskError(f"{task.folder}/task.toml: {table}.{name}: {error}") from error
    return values


def _artifact(given: str | ArtifactSettings) -> Artifact:
    return Artifact(given) if isinstance(given, str) else Artifact(given.source, tuple(given.exclude))


def _healthcheck(given: HealthcheckSettings | None) -> Healthcheck | None:
    if given is None:
        return None
    return Healthcheck(
        given.command,
        given.interval_sec,
        given.timeout_sec,
        given.start_period_sec,
        given.start_interval_sec,
        given.retries,
    )


def _metadata(task: HarborTask) -> dict[str, object]:
    """Return the author's metadata, with what the registry and the data set say of the task."""
    settings = task.settings
    said: dict[str, object] = dict(settings.metadata)
    if settings.task is not None:
        said["task"] = settings.task.model_dump(exclude_defaults=True)
    if settings.source is not None:
        said["source"] = settings.source
    return said
