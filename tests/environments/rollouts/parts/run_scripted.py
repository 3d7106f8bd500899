"""A program that runs a scripted policy on small tasks, to be killed: `run_scripted URL FOLDER TRIES`."""

import asyncio
import sys
from pathlib import Path

from rollouts_world import Scripted, Watched, means, plan_of, task

from core.provenance import made_by
from environments.harness.harness import Endpoint
from environments.rollouts.episode import Episode
from environments.rollouts.journal import RolloutJournal
from environments.rollouts.plan import TaskSet
from environments.rollouts.reporting.page import Page
from environments.rollouts.run import here, run_rollouts

TASKS = TaskSet("own", (task("good"), task("bad", "echo 2 >answer"), task("slow", "sleep 0.3; echo 1 >answer")))


class _Told(Watched):
    def began(self, episode: Episode) -> None:
        sys.stdout.write("began\n")
        sys.stdout.flush()


async def main(url: str, folder: Path, tries: int) -> None:
    journal = RolloutJournal(folder / "journal.db")
    endpoint = Endpoint(url, model="onward-tiny")
    plan = plan_of(TASKS, endpoint=endpoint, tries=tries)
    page = Page(folder / "report.html", made_by("run_scripted"))
    async with means(folder / "sandboxes", harness=Scripted(asks=True)) as ready:
        await run_rollouts(plan, journal, here(plan, ready), _Told(), page, asyncio.Event())
    journal.close()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])))
