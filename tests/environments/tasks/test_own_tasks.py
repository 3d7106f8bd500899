"""Our own tasks are fair, and the one about duplicates sees them."""

import asyncio
from pathlib import Path

import pytest
from sandboxed import PATIENCE_S
from task_folders import upon_this_machine

from environments.sandboxes.bubblewrap.adapter import Bubblewrap
from environments.tasks.checking import Checked, check
from environments.tasks.harbor.folder import read_task, read_tasks
from environments.tasks.opening import open_sandbox
from environments.tasks.preparing import prepare
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


def test_ten_tasks_reward_their_solution_and_not_who_does_nothing(kept_images: Path) -> None:
    async def run() -> list[Checked]:
        sandboxes = Bubblewrap(kept_images / "sandboxes")
        try:
            return [one async for one in check(read_tasks([OWN]), upon_this_machine(kept_images), sandboxes)]
        finally:
            await sandboxes.close()

    done = asyncio.run(run())
    assert [one for one in done if one.wrong] == []
    assert {(one.solved, one.untouched) for one in done} == {(1.0, 0.0)}
    assert len(done) == 10


@pytest.mark.parametrize(("more", "rewards"), [("", (1, 0)), (DUPLICATE, (0, 1))])
def test_a_patch_that_duplicates_a_helper_passes_the_tests_and_loses(
    kept_images: Path, more: str, rewards: tuple[float, float]
) -> None:
    folder = OWN / "add-table-names"

    async def run() -> Verdict:
        sandboxes = Bubblewrap(kept_images / "sandboxes")
        try:
            task = await prepare(read_task(folder), upon_this_machine(kept_images))
            async with await open_sandbox(task, sandboxes) as sandbox:
                patch = (folder / "solution" / "solve.sh").read_text() + more
                await sandbox.run(("sh", "-c", patch), timeout_seconds=PATIENCE_S)
                return await verify(task, sandbox, sandboxes)
        finally:
            await sandboxes.close()

    verdict = asyncio.run(run())
    assert verdict.rewards["tests"] == 1
    assert (verdict.reward, verdict.rewards["duplicates"]) == rewards
