"""Agentic cases: tasks that an agent works on, whose answer is what it left in its workspace.

Each is a folder in Harbor's format (https://harborframework.com/docs/tasks), anywhere within a suite: `task.toml`,
`instruction.md`, `environment/`, `tests/` and, if its author gave one, `solution/`. Of `task.toml` only this is read
here; whoever runs the task reads the rest:

[metadata]
category = "refactoring"    # the case's group; "tasks" if absent
weight = 2.0                # 1 if absent
"""

import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, Field, ValidationError

from core.errors import ConfigError

TASK_FILE = "task.toml"


class _Metadata(BaseModel):
    category: str = Field(default="tasks", min_length=1)
    weight: float = Field(default=1.0, gt=0, allow_inf_nan=False)


class _TaskFile(BaseModel):
    metadata: _Metadata = _Metadata()


@dataclass(frozen=True)
class TaskCase:
    """One task of a suite; `name` is that of its folder, relative to the suite's."""

    name: str
    folder: Path
    weight: float = 1.0
    group: str = "tasks"

    def solutions(self) -> dict[str, str]:
        """Return the texts of its solution by their names; of a patch also the lines that it adds."""
        found: dict[str, str] = {}
        for path in files_of(self.folder / "solution"):
            text = _text(path)
            if text is None:
                continue
            name = f"{self.name}/{path.relative_to(self.folder)}"
            found[name] = text
            if added := _added(text):
                found[f"{name}, added"] = added
        return found


def find_tasks(suite: Path) -> list[TaskCase]:
    """Return the tasks of a suite by name. Raises ConfigError naming the file and the field."""
    folders = {path.parent for path in found_in(suite, TASK_FILE)}
    outer = sorted(folder for folder in folders if not folders & {*folder.parents})
    return [_read(folder, suite) for folder in outer]


def found_in(suite: Path, pattern: str) -> list[Path]:
    """Return the files of a suite that have such a name, but for what is hidden: a decision under way, or `.git`."""
    found = sorted(suite.rglob(pattern))
    return [path for path in found if not any(part.startswith(".") for part in path.relative_to(suite).parts)]


def files_of(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def _read(folder: Path, suite: Path) -> TaskCase:
    path = folder / TASK_FILE
    try:
        metadata = _TaskFile.model_validate(tomllib.loads(path.read_text())).metadata
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"{path}: {error}") from error
    except ValidationError as error:
        wrong = error.errors()[0]
        raise ConfigError(f"{path}: {'.'.join(map(str, wrong['loc']))}: {wrong['msg']}") from error
    for name in ("instruction.md", "tests"):
        if not (folder / name).exists():
            raise ConfigError(f"{folder}: no {name}, which a task of a suite needs")
    name = folder.name if folder == suite else str(folder.relative_to(suite))
    return TaskCase(name, folder, metadata.weight, metadata.category)


def _text(path: Path) -> str | None:
    """Return a file's text; None for one that is no text, which no answer can resemble."""
    try:
        return path.read_text().strip() or None
    except UnicodeDecodeError:
        return None


def _added(text: str) -> str:
    return "\n".join(_added_lines(text))


def _added_lines(text: str) -> Iterator[str]:
    """Yield the lines that the patches within a text add."""
    within = False
    for line in text.splitlines():
        if line.startswith("@@ "):
            within = True
        elif not line.startswith(("+", "-", " ")) and line:
            within = False
        elif within and line.startswith("+") and not line.startswith("+++ "):
            yield line[1:]
