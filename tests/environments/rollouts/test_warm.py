"""Sandboxes are made ahead: only the first episode waits for its own."""

import asyncio
from pathlib import Path

import pytest
from kept_images import KEPT
from rollouts_world import Watched, plan_of, told_service
from sandboxed import require_bubblewrap
from task_folders import write_task

from environments.rollouts.journal import Journal
from environments.rollouts.run import executing, run_rollouts
from environments.rollouts.workshop import Source, Workshop, task_sets
from environments.sandboxes.pool import Pool

JUDGES = "#!/bin/sh\ntest -f answer && echo 1 >/logs/verifier/reward.txt || echo 0 >/logs/verifier/reward.txt\n"


def test_the_next_episodes_sandbox_is_made_while_others_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    require_bubblewrap()
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
    workshop = Workshop((Source("own", folders),), KEPT, "oracle", images={"*": "machine"})

    async def work() -> list[float | None]:
        (tasks,) = await task_sets(workshop)
        journal = Journal(tmp_path / "journal.db")
        try:
            async with told_service() as (_, url):
                plan = plan_of(tasks, url=url, tries=2, parallel=1)
                async with executing(plan, workshop) as place:
                    await run_rollouts(plan, journal, place, Watched(), None, asyncio.Event())
            return [each.reward for each in journal.attempts(10)]
        finally:
            journal.close()

    assert asyncio.run(work()) == [1.0] * 6
    assert len(cold) == 1
