"""The simulator's tasks as folders: wrong as they lie there, right as their solution leaves them."""

import asyncio
from pathlib import Path

import pytest
from task_folders import prepared

from environments.harness.harness import Budget, Endpoint
from environments.harness.others.oracle import Oracle
from environments.sandboxes.bubblewrap.adapter import Bubblewrap
from environments.tasks.opening import open_sandbox
from environments.tasks.verifying import verify
from simulator.tasks.folders import fix_tasks, write_folder, write_folders

ENDLESS = "while True: pass\n"


def judged(folder: Path, images: Path, *, solved: bool = False, written: str | None = None) -> float:
    async def run() -> float:
        sandboxes = Bubblewrap(images / "sandboxes")
        try:
            task = await prepared(folder, images)
            async with await open_sandbox(task, sandboxes) as sandbox:
                if solved:
                    await Oracle().work(task, sandbox, Endpoint("http://127.0.0.1:1/v1"), Budget())
                if written is not None:
                    (module,) = [path.name for path in (folder / "environment").glob("*.py") if path.stem != "tests"]
                    await sandbox.write(f"/app/{module}", written.encode())
                return (await verify(task, sandbox, sandboxes)).reward
        finally:
            await sandboxes.close()

    return asyncio.run(run())


@pytest.mark.parametrize("number", range(3))
def test_a_task_is_unsolved_as_it_lies_there_and_solved_by_its_solution(
    number: int, tmp_path: Path, images: Path
) -> None:
    write_folder(fix_tasks(3, seed=0)[number], tmp_path / "task")
    assert judged(tmp_path / "task", images) == 0.0
    assert judged(tmp_path / "task", images, solved=True) == 1.0


@pytest.mark.parametrize("written", ["def nothing(\n", "import os; os._exit(0)\n", ENDLESS])
def test_what_does_not_pass_is_judged_and_no_failure_of_the_machine(written: str, tmp_path: Path, images: Path) -> None:
    write_folder(fix_tasks(1, seed=0)[0], tmp_path / "task")
    script = tmp_path / "task" / "tests" / "test.sh"
    assert "-t 10" in script.read_text()
    script.write_text(script.read_text().replace("-t 10", "-t 1"))  # an endless loop runs for all of it
    assert judged(tmp_path / "task", images, written=written) == 0.0


def test_no_task_is_both_taught_and_held_out(tmp_path: Path) -> None:
    write_folders(tmp_path, taught=20, held_out=10, seed=1)
    said = [
        {path.read_text() for path in (tmp_path / name).glob("*/instruction.md")} for name in ("taught", "held-out")
    ]
    assert [len(some) for some in said] == [20, 10]
    assert not said[0] & said[1]
