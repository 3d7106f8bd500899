"""Tasks in Harbor's format, written by tests."""

import shutil
from pathlib import Path

import pytest
import sandbox_kinds
from sandboxed import require_bubblewrap

from environments.tasks.harbor.folder import HarborTask, read_task
from environments.tasks.images.bases import Bases
from environments.tasks.images.build import LocalBuilder
from environments.tasks.preparing import Lent, prepare
from environments.tasks.task import Task

_TOOLS = (
    *("cp", "mv", "tar", "test", "false", "true", "wc", "grep", "stat", "mkfifo", "truncate", "setsid"),
    *("tee", "dirname", "mknod", "mount", "chown", "sha1sum"),
)
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


def small_base(folder: Path) -> None:
    """Unpack a small image of this machine's shell and tools, upon which `builder` builds."""
    root = sandbox_kinds.image(folder, _TOOLS).root
    shutil.rmtree(root / "app")
    for name in ("dev", "proc", "srv", "usr/bin", "var"):
        (root / name).mkdir(parents=True, exist_ok=True)
    (root / "bin" / "env").rename(root / "usr" / "bin" / "env")
    (root / "tmp").mkdir(mode=0o777)
    (root / "tmp").chmod(0o1777)
    root.rename(base_of(folder))
    shutil.rmtree(folder / "images")


@pytest.fixture
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder of a test's own, as `new_images` makes it, in modules that import this."""
    return new_images(tmp_path_factory)


def new_images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a folder to keep images in, with a small base for them. Skips where no sandbox opens, and fails in CI."""
    require_bubblewrap()
    folder = tmp_path_factory.mktemp("images")
    folder.chmod(0o755)  # other users' sandboxes stand on it
    small_base(folder)
    return folder


def base_of(folder: Path) -> Path:
    return folder / "base"


def builder(folder: Path) -> LocalBuilder:
    """Return what builds images upon the small one, whatever base they ask for."""
    return LocalBuilder(folder / "layers", Bases({"*": str(base_of(folder))}, folder / "roots"))


def upon_this_machine(folder: Path) -> LocalBuilder:
    """Return what builds images upon this machine's programs, whatever base they ask for."""
    return LocalBuilder(folder / "layers", Bases({"*": "machine"}, folder / "roots"))


async def prepared(folder: Path, images: Path, lent: Lent | None = None) -> Task:
    """Read a task's folder and make it ready for sandboxes."""
    return await prepare(read_task(folder), builder(images), lent)


def read(folder: Path) -> HarborTask:
    return read_task(folder)
