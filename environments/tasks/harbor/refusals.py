"""What a task may ask for and does not get here: each by its name in `task.toml`, with the reason.

A task that needs what it is not given would judge the model by the wrong measure, so it is refused whole."""

from collections.abc import Iterator
from pathlib import Path

from environments.tasks.harbor.schema import EnvironmentSettings, PhaseSettings, TaskSettings

_ONE_USER = "a sandbox has one user, who is root inside"
_SERVICES = "a sandbox holds one service, main"


def refused(settings: TaskSettings, folder: Path) -> Iterator[tuple[str, str]]:
    """Yield what of a task is not honoured: a field or file, and why."""
    yield from _environment("environment", settings.environment)
    yield from _phase("agent", settings.agent, settings.environment)
    yield from _verifier(settings)
    yield from _artifacts(settings)
    if settings.steps:
        yield "steps", "an episode has one instruction and one verdict"
    if settings.multi_step_reward_strategy is not None:
        yield "multi_step_reward_strategy", "it is for tasks of several steps"
    if settings.multi_step_reward_mode is not None:
        yield "multi_step_reward_mode", "it is for tasks of several steps"
    for name, why in _FILES.items():
        if (folder / name).exists():
            yield name, why


_FILES = {
    "trajectory.json": "a harness begins with an empty conversation",
    "environment/docker-compose.yaml": _SERVICES,
    "environment/docker-compose.yml": _SERVICES,
    "tests/docker-compose.yaml": _SERVICES,
    "steps": "an episode has one instruction and one verdict",
}


def _environment(table: str, given: EnvironmentSettings) -> Iterator[tuple[str, str]]:
    if given.os != "linux":
        yield f"{table}.os", "sandboxes are Linux"
    if given.network_mode == "allowlist":
        yield f"{table}.network_mode", "a sandbox has the whole network or none"
    if given.allowed_hosts is not None:
        yield f"{table}.allowed_hosts", "a sandbox has the whole network or none"
    if given.gpus:
        yield f"{table}.gpus", "sandboxes have no accelerator"
    if given.gpu_types:
        yield f"{table}.gpu_types", "sandboxes have no accelerator"
    if given.tpu is not None:
        yield f"{table}.tpu", "sandboxes have no accelerator"
    if given.mcp_servers:
        yield f"{table}.mcp_servers", "the harness speaks to no server of tools"
    if given.skills_dir is not None:
        yield f"{table}.skills_dir", "the harness reads no skills"


def _phase(table: str, given: PhaseSettings, environment: EnvironmentSettings) -> Iterator[tuple[str, str]]:
    if given.user not in (None, "root", 0):
        yield f"{table}.user", _ONE_USER
    if given.allowed_hosts is not None:
        yield f"{table}.allowed_hosts", "a sandbox has the whole network or none"
    if given.network_mode is not None and (given.network_mode == "public") != environment.networked:
        yield f"{table}.network_mode", "a sandbox keeps the network that its environment states"


def _verifier(settings: TaskSettings) -> Iterator[tuple[str, str]]:
    verifier = settings.verifier
    if verifier.environment_mode == "shared" and verifier.environment is not None:
        yield "verifier.environment", "a shared verifier runs in the agent's environment"
    if verifier.environment is not None:
        yield from _environment("verifier.environment", verifier.environment)
    yield from _phase("verifier", verifier, verifier.environment or settings.environment)
    for number, hook in enumerate(verifier.collect):
        if hook.service != "main":
            yield f"verifier.collect.{number}.service", _SERVICES
        if hook.user not in (None, "root", 0):
            yield f"verifier.collect.{number}.user", _ONE_USER


def _artifacts(settings: TaskSettings) -> Iterator[tuple[str, str]]:
    for number, artifact in enumerate(settings.artifacts):
        source = artifact if isinstance(artifact, str) else artifact.source
        if ".." in Path(source).parts or not source.startswith("/"):
            yield f"artifacts.{number}", f"{source!r} is no absolute path"
        if isinstance(artifact, str):
            continue
        if artifact.service not in (None, "main"):
            yield f"artifacts.{number}.service", _SERVICES
        if artifact.destination is not None:
            yield (
                f"artifacts.{number}.destination",
                "artifacts are carried to a separate verifier and kept nowhere else",
            )
