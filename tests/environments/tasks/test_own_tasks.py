"""Our own tasks are fair, and the one about duplicates sees them."""

import asyncio
from pathlib import Path

import pytest
from task_folders import builder, prepared, read, write_task

from environments.sandboxes.bubblewrap.adapter import Bubblewrap
from environments.tasks.checking import Checked, check
from environments.tasks.harbor.folder import read_tasks
from environments.tasks.opening import open_sandbox
from environments.tasks.verifying import Verdict, verify

OWN = Path(__file__).resolve().parents[3] / "environments" / "tasks" / "own"
# It does what is asked, and takes the quotes off by itself.
DUPLICATE = """
sed -i 's/token.get_real_name()/_bare(token.get_real_name())/' sqlparse/__init__.py
cat >>sqlparse/__init__.py <<'EOF'


def _bare(name):
    if name is None:
        return None
    if name[0] in ('"', "'", '`') and name[0] == name[-1]:
        name = name[1:-1]
    return name
EOF
"""


def test_ten_tasks_reward_their_solution_and_not_who_does_nothing(images: Path) -> None:
    async def run() -> list[Checked]:
        sandboxes = Bubblewrap(images / "sandboxes")
        try:
            return [one async for one in check(read_tasks([OWN]), builder(images), sandboxes)]
        finally:
            await sandboxes.close()

    done = asyncio.run(run())
    assert [one for one in done if one.wrong] == []
    assert {(one.solved, one.untouched) for one in done} == {(1.0, 0.0)}
    assert len(done) == 10


@pytest.mark.parametrize(("more", "rewards"), [("", (1, 0)), (DUPLICATE, (0, 1))])
def test_a_patch_that_duplicates_a_helper_passes_the_tests_and_loses(
    images: Path, more: str, rewards: tuple[float, float]
) -> None:
    folder = OWN / "add-table-names"

    async def run() -> Verdict:
        sandboxes = Bubblewrap(images / "sandboxes")
        try:
            task = await prepared(folder, images)
            async with await open_sandbox(task, sandboxes) as sandbox:
                patch = (folder / "solution" / "solve.sh").read_text() + more
                await sandbox.run(("sh", "-c", patch), timeout_seconds=20)
                return await verify(task, sandbox, sandboxes)
        finally:
            await sandboxes.close()

    verdict = asyncio.run(run())
    assert verdict.rewards["tests"] == 1
    assert (verdict.reward, verdict.rewards["duplicates"]) == rewards


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
