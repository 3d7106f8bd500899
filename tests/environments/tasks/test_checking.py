"""What is unfair about a task is said of it."""

import asyncio
from pathlib import Path

from task_folders import builder, read, write_task

from environments.sandboxes.bubblewrap.adapter import Bubblewrap
from environments.tasks.checking import Checked, check


def test_a_task_whose_solution_does_not_solve_it_is_told_of(images: Path, tmp_path: Path) -> None:
    unfair = write_task(tmp_path / "unfair", files={"solution/solve.sh": "exit 4\n"})
    free = write_task(tmp_path / "free", files={"solution/solve.sh": "#!/bin/sh\ntrue\n"})

    async def run() -> dict[str, Checked]:
        sandboxes = Bubblewrap(images / "sandboxes")
        try:
            tasks = [read(unfair), read(free)]
            return {one.name: one async for one in check(tasks, builder(images), sandboxes)}
        finally:
            await sandboxes.close()

    done = asyncio.run(run())
    assert done["unfair"].wrong[0].startswith("its solution ends with exit code")
    assert done["free"].wrong == ("doing nothing is rewarded in full",)
