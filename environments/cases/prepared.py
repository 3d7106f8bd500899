"""Makes the tasks of eval cases ready for sandboxes, in a process of its own.

What sandboxes stand on must be readable for their users, who exist nowhere else. Whoever asks may be a service whose
files are nobody else's: how a process makes its files holds for all of its threads."""

import asyncio
import base64
import os
import pickle
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from environments.cases.apart import command_of
from environments.errors import EnvironmentFault, InfrastructureFailure, TaskError
from environments.sandboxes.bubblewrap.adapter import Bubblewrap
from environments.sandboxes.sandbox import SandboxSpec
from environments.tasks.commands import said
from environments.tasks.harbor.folder import read_task
from environments.tasks.preparing import Lent, images_of, prepare, require_lent
from environments.tasks.task import Task

_READABLE: Final = 0o022
_LONGEST_SECONDS: Final = 3600.0
_GRACE_SECONDS: Final = 5.0  # to end what an engine builds or pulls, and to clear away what was half unpacked


async def require_sandboxes(folder: Path) -> None:
    """Open a sandbox and close it. Raises InfrastructureFailure, which says what this machine lacks."""
    sandboxes = Bubblewrap(folder / "sandboxes")
    try:
        await (await sandboxes.open(SandboxSpec())).close()
    finally:
        await sandboxes.close()


async def prepared(folders: Sequence[Path], kept: Path, images: Mapping[str, str]) -> list[Task | str]:
    """Return the tasks of these folders; in the place of one that cannot be had, why not.

    Images are kept below `kept`; `images` says what stands for those that no engine can pull. Nothing is lent."""
    asked = pickle.dumps((list(folders), kept, dict(images)))
    try:
        told = await said(command_of(__name__), _LONGEST_SECONDS, "image", asked, _GRACE_SECONDS)
    except InfrastructureFailure as failure:
        return [str(failure)] * len(folders)
    made: list[Task | str] = pickle.loads(base64.b64decode(told.splitlines()[-1]))
    return made


async def _prepared(folders: Sequence[Path], kept: Path, images: Mapping[str, str]) -> list[Task | str]:
    found = await images_of(kept / "images", images)
    done: list[Task | str] = []
    for folder in folders:
        try:
            done.append(await prepare(read_task(folder), found))
        except EnvironmentFault as fault:
            done.append(str(fault))
    return done


def check_task(folder: Path) -> None:
    """Check a task's folder. Raises TaskError for one that is not well formed, or wants what no eval case has."""
    task = read_task(folder)
    try:
        require_lent(task, Lent())
    except TaskError as error:
        raise TaskError(f"{error} (tasks of eval cases are lent nothing)") from error


def main() -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)  # which whoever started us may have had ignored
    os.umask(_READABLE)
    folders, kept, images = pickle.load(sys.stdin.buffer)
    print(base64.b64encode(pickle.dumps(asyncio.run(_prepared(folders, kept, images)))).decode())


if __name__ == "__main__":
    main()
