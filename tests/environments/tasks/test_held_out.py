"""Tasks of suites are refused as rollouts: as they are, and where only what is around the request was changed."""

from pathlib import Path

import pytest

from environments.errors import TaskError
from environments.sandboxes.sandbox import SandboxSpec
from environments.tasks.harbor.folder import read_task
from environments.tasks.held_out import refuse_held_out
from environments.tasks.task import Task

FILES = {
    "task.toml": "",
    "instruction.md": "Sum a list.\n",
    "environment/Dockerfile": "FROM base\n",
    "tests/test.sh": "exit 0\n",
}


def put(folder: Path, **changes: str) -> Path:
    for name, content in (FILES | {name.replace("__", "/"): text for name, text in changes.items()}).items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return folder


def task(folder: Path) -> Task:
    read = read_task(folder)
    return Task(read.name, read.instruction, read.digest, SandboxSpec(), 1.0, 1.0)


def test_a_suites_task_is_refused_by_name_and_others_are_not(tmp_path: Path) -> None:
    suite = tmp_path / "suite"
    held = put(suite / "tasks" / "sum")
    (suite / "cases.toml").write_text("")
    other = task(put(tmp_path / "product", **{"instruction.md": "Multiply a list."}))
    refuse_held_out({"own": [other]}, [suite])
    with pytest.raises(TaskError, match=rf"own: sum is a task of the suite {suite}: .*must not be learned"):
        refuse_held_out({"own": [other, task(held)]}, [suite])
    refuse_held_out({"own": [task(held)]}, [])


def test_a_task_that_asks_the_same_is_the_same(tmp_path: Path) -> None:
    suite = tmp_path / "suite"
    put(suite / "sum")
    changed = {"instruction.md": "sum  a\nLIST.", "environment__Dockerfile": "FROM other\n"}
    copied = task(put(tmp_path / "copied", **changed))
    with pytest.raises(TaskError, match="copied is a task of the suite"):
        refuse_held_out({"own": [copied]}, [suite])
