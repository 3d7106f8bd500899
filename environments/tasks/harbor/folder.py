"""Reads a task's folder in Harbor's format: what its author wrote, checked and not yet prepared."""

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from environments.errors import TaskError
from environments.tasks.harbor.contents import digest_of
from environments.tasks.harbor.refusals import refused
from environments.tasks.harbor.schema import TaskSettings


@dataclass(frozen=True)
class HarborTask:
    """A task as it lies on disk. `name` is that of its registry (`org/name`) where it has one, else the folder's."""

    name: str
    folder: Path
    settings: TaskSettings
    instruction: str
    digest: str

    @property
    def tests(self) -> Path:
        return self.folder / "tests"

    @property
    def solution(self) -> Path | None:
        return self.folder / "solution" if (self.folder / "solution" / "solve.sh").is_file() else None

    @property
    def dockerfile(self) -> Path | None:
        path = self.folder / "environment" / "Dockerfile"
        return path if path.is_file() else None


def read_task(folder: Path) -> HarborTask:
    """Read a task and all its settings.

    Raises TaskError, which names every field that is unknown, malformed or not honoured here."""
    folder = folder.resolve()
    digest = digest_of(folder)
    settings = _settings(folder)
    if refusals := [f"{name} is not honoured: {why}" for name, why in refused(settings, folder)]:
        raise TaskError(f"{folder}: " + "; ".join(refusals))
    for needed in ("instruction.md", "tests/test.sh"):
        if not (folder / needed).is_file():
            separate = settings.verifier.separate and needed == "tests/test.sh"
            more = (
                ", which a separate verifier's image would hold: only tests that lie here are run" if separate else ""
            )
            raise TaskError(f"{folder}: {needed} is missing{more}")
    try:
        instruction = (folder / "instruction.md").read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise TaskError(f"{folder}: instruction.md is no UTF-8: {error}") from error
    if not instruction.strip():
        raise TaskError(f"{folder}: instruction.md is empty")
    task = HarborTask(_name(folder, settings), folder, settings, instruction, digest)
    if task.dockerfile is None and settings.environment.docker_image is None:
        raise TaskError(f"{folder}: neither environment/Dockerfile nor environment.docker_image says where the work is")
    return task


def read_tasks(folders: Sequence[Path]) -> list[HarborTask]:
    """Read each folder that is a task, and every task in the folders that are not, in the order of their paths.

    Raises TaskError, also where two tasks have one name."""
    found: dict[str, HarborTask] = {}
    for folder in folders:
        paths = [folder] if (folder / "task.toml").is_file() else sorted(p.parent for p in folder.glob("*/task.toml"))
        if not paths:
            raise TaskError(f"{folder}: no task.toml here, nor in the folders of it")
        for task in map(read_task, paths):
            if task.name in found:
                raise TaskError(f"{task.folder}: {found[task.name].folder} is named {task.name} too")
            found[task.name] = task
    return list(found.values())


def _name(folder: Path, settings: TaskSettings) -> str:
    return settings.task.name if settings.task is not None else folder.name


def _settings(folder: Path) -> TaskSettings:
    path = folder / "task.toml"
    try:
        return TaskSettings.model_validate(tomllib.loads(path.read_text()))
    except FileNotFoundError as error:
        raise TaskError(f"{folder}: task.toml is missing") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise TaskError(f"{path}: {error}") from error
    except ValidationError as error:
        raise TaskError(f"{path}: " + "; ".join(_told(problem) for problem in error.errors())) from error


def _told(problem: object) -> str:
    assert isinstance(problem, dict)
    place = ".".join(str(part) for part in problem["loc"]) or "the file"
    unknown = problem["type"] == "extra_forbidden"
    return f"{place} is unknown" if unknown else f"{place}: {problem['msg']}"
