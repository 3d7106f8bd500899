"""What a machine makes attempts with: sandboxes made ahead, and of the machine itself what tasks are lent."""

import asyncio
import pickle
from dataclasses import replace
from pathlib import Path

import pytest
from rollouts_world import Watched, plan_of, told_service
from task_folders import base_of, images, write_task

from environments.errors import TaskError
from environments.rollouts.journal import RolloutJournal
from environments.rollouts.run import executing, run_rollouts
from environments.rollouts.workshop import Source, Workshop, task_sets
from environments.sandboxes.pool import Pool

__all__ = ["images"]  # a fixture

JUDGES = "#!/bin/sh\ntest -f answer && echo 1 >/logs/verifier/reward.txt || echo 0 >/logs/verifier/reward.txt\n"


def workshop_of(images: Path, *folders: Path) -> Workshop:
    return Workshop((Source("own", folders),), images, "oracle", images={"*": str(base_of(images))})


def test_the_next_episodes_sandbox_is_made_while_others_work(
    tmp_path: Path, images: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    solution = {"solution/solve.sh": "#!/bin/sh\nsleep 0.5\necho 1 >answer\n"}
    folders = tuple(
        write_task(tmp_path / name, files=solution, tests=JUDGES, dockerfile=f"FROM base\nWORKDIR /{name}\n")
        for name in ("one", "two", "three")
    )
    cold: list[str] = []
    asked = Pool._tried

    async def tried(pool: Pool, spec: object) -> object:
        cold.append(str(spec))
        return await asked(pool, spec)  # type: ignore[arg-type]

    monkeypatch.setattr(Pool, "_tried", tried)
    workshop = workshop_of(images, *folders)

    async def work() -> list[float | None]:
        (tasks,) = await task_sets(workshop)
        journal = RolloutJournal(tmp_path / "journal.db")
        try:
            async with told_service() as (_, url):
                plan = plan_of(tasks, url=url, tries=1, parallel=1)
                async with executing(plan, workshop) as place:
                    await run_rollouts(plan, journal, place, Watched(), None, asyncio.Event())
            return [each.reward for each in journal.attempts(10)]
        finally:
            journal.close()

    assert asyncio.run(work()) == [1.0] * 3
    assert len(cold) == 1


def test_tasks_have_of_this_machine_what_is_lent_by_name(
    tmp_path: Path, images: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wants = '[environment]\nnetwork_mode = "public"\n[environment.env]\nTOKEN = "${TOKEN}"\n'
    monkeypatch.setenv("TOKEN", "word-of-this-machine")
    bare = workshop_of(images, write_task(tmp_path / "task", wants))
    with pytest.raises(TaskError, match="it wants a network"):
        asyncio.run(task_sets(bare))
    with pytest.raises(TaskError, match="TOKEN"):
        asyncio.run(task_sets(replace(bare, network=True)))
    lent = replace(bare, network=True, variables=("TOKEN", "ABSENT"))
    ((task,),) = [each.tasks for each in asyncio.run(task_sets(lent))]
    assert (task.spec.network, task.spec.environment["TOKEN"]) == (True, "word-of-this-machine")
    assert b"word-of-this-machine" not in pickle.dumps(lent)  # what a cluster is told
