"""Tasks that are held out: those of suites that judge versions, at which no rollout works.

A version that learned a suite's tasks would show by them what it knows by heart. A task is the same as a suite's where
it asks the same, whatever else of it was changed."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path

from environments.errors import TaskError
from environments.tasks.harbor.folder import HarborTask, read_task
from environments.tasks.task import Task


def refuse_held_out(sets: Mapping[str, Sequence[Task]], suites: Collection[Path]) -> None:
    """Raise TaskError naming the tasks that are a suite's, each by its set, or a suite's task that cannot be read."""
    asked = {_plain(task.instruction): suite for suite in suites for task in _tasks_of(suite)}
    found = [
        f"{name}: {task.name} is a task of the suite {suite}"
        for name, tasks in sets.items()
        for task in tasks
        if (suite := asked.get(_plain(task.instruction))) is not None
    ]
    if found:
        raise TaskError(f"{'; '.join(found)}: what a suite asks must not be learned")


def _tasks_of(suite: Path) -> Iterator[HarborTask]:
    folders = {path.parent for path in suite.rglob("task.toml")}
    for folder in sorted(folders):
        if not folders & {*folder.parents}:
            yield read_task(folder)


def _plain(instruction: str) -> str:
    return " ".join(instruction.casefold().split())
