"""Reads `verifiers.toml`: which environment of `verifiers` a folder stands for, and how it is made."""

import tomllib
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from environments.errors import TaskError
from environments.tasks.adapters.verifiers_process import VerifiersEnvironment, Wanted
from environments.tasks.task import Task

_FILE = "verifiers.toml"


class VerifiersSettings(BaseModel):
    """`verifiers.toml`: `environment` is what the library reads as `[env]`, `sampling` what it reads by that name.

    `paths` are folders where the environment's module is found, beside what the library brings; seen from the file."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    environment: dict[str, Any]
    sampling: dict[str, Any] = Field(default_factory=dict)
    paths: list[str] = Field(default_factory=list)
    most_tasks: Annotated[int, Field(ge=1)] = 100
    agent_timeout_sec: Annotated[float, Field(gt=0)] = 600.0


def stands_for_environment(folder: Path) -> bool:
    return (folder / _FILE).is_file()


def wanted_of(folder: Path) -> Wanted:
    """Return the environment that a folder stands for, under the folder's name.

    Raises TaskError naming file and field."""
    path = folder.resolve() / _FILE
    try:
        given = VerifiersSettings.model_validate(tomllib.loads(path.read_text()))
    except tomllib.TOMLDecodeError as error:
        raise TaskError(f"{path}: {error}") from error
    except ValidationError as error:
        told = "; ".join(f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors())
        raise TaskError(f"{path}: {told}") from error
    return Wanted(
        path.parent.name,
        given.environment,
        given.most_tasks,
        tuple(path.parent / each for each in given.paths),
        given.sampling,
        given.agent_timeout_sec,
    )


async def environment_tasks(wanted: Wanted, folder: Path) -> tuple[Task, ...]:
    """Load an environment to learn of its tasks, and close it. `folder` keeps the interpreter of the library.

    Raises TaskError, InfrastructureFailure where there can be no such interpreter."""
    environment = await VerifiersEnvironment.start(wanted, folder)
    await environment.close()
    return environment.tasks
