"""Reads tasks from wherever they are kept, ready for sandboxes: folders in Harbor's format, datasets of questions.

A folder with a file `reasoning-gym.toml` stands for a dataset of reasoning-gym; any other is a task, or holds tasks."""

import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from environments.errors import TaskError
from environments.tasks.adapters.reasoning import Dataset, reasoning_tasks
from environments.tasks.harbor.folder import read_tasks
from environments.tasks.images.image import Images
from environments.tasks.preparing import Lent, prepare
from environments.tasks.task import Task

_DATASET = "reasoning-gym.toml"


class DatasetSettings(BaseModel):
    """`reasoning-gym.toml`: which dataset, how many of its questions, and its own parameters."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    dataset: str
    size: Annotated[int, Field(ge=1)]
    seed: int = 0
    agent_timeout_sec: Annotated[float, Field(gt=0)] = 600.0
    config: dict[str, Any] = Field(default_factory=dict)


async def ready_tasks(folders: Sequence[Path], images: Images, lent: Lent | None = None) -> list[Task]:
    """Return the tasks of folders, their images prepared.

    Raises TaskError for one that is not well formed or wants what it is not lent, InfrastructureFailure where an image
    cannot be had."""
    datasets = [folder for folder in folders if stands_for_questions(folder)]
    harbor = [folder for folder in folders if folder not in datasets]
    tasks = [await prepare(task, images, lent) for task in read_tasks(harbor)]
    return [*tasks, *(task for folder in datasets for task in questions_in(folder))]


def stands_for_questions(folder: Path) -> bool:
    return (folder / _DATASET).is_file()


def questions_in(folder: Path) -> list[Task]:
    """Return the questions of the dataset that a folder stands for. Raises TaskError, also without the library."""
    path = folder / _DATASET
    try:
        given = DatasetSettings.model_validate(tomllib.loads(path.read_text()))
    except tomllib.TOMLDecodeError as error:
        raise TaskError(f"{path}: {error}") from error
    except ValidationError as error:
        told = "; ".join(f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors())
        raise TaskError(f"{path}: {told}") from error
    return reasoning_tasks(Dataset(given.dataset, given.size, given.seed, given.config), given.agent_timeout_sec)
