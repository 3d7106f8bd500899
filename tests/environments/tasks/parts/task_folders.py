"""Tasks in Harbor's format, written by tests."""

from pathlib import Path

from environments.tasks.harbor.folder import HarborTask, read_task
from environments.tasks.images.bases import Bases
from environments.tasks.images.build import LocalBuilder
from environments.tasks.preparing import prepare
from environments.tasks.task import Task

PASSES = "#!/bin/sh\necho 1 >/logs/verifier/reward.txt\n"


def write_task(
    folder: Path,
    settings: str = "",
    *,
    tests: str = PASSES,
    dockerfile: str = "FROM base\nWORKDIR /app\n",
    files: dict[str, str] | None = None,
) -> Path:
    """Write a task's folder: `files` are others, by their path."""
    all_files = {
        "task.toml": settings,
        "instruction.md": "Do what is asked.\n",
        "environment/Dockerfile": dockerfile,
        "tests/test.sh": tests,
        **(files or {}),
    }
    for name, content in all_files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return folder


def builder(folder: Path) -> LocalBuilder:
    """Return what builds images upon this machine's programs, whatever base they ask for."""
    return LocalBuilder(folder / "layers", Bases({"*": "machine"}, folder / "roots"))


async def prepared(folder: Path, images: Path, host: dict[str, str] | None = None) -> Task:
    """Read a task's folder and make it ready for sandboxes."""
    return await prepare(read_task(folder), builder(images), host or {})


def read(folder: Path) -> HarborTask:
    return read_task(folder)
