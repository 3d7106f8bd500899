"""Checks that tasks are fair: their own solution is rewarded in full, and who does nothing gets less."""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

from environments.errors import EnvironmentFault
from environments.sandboxes.sandbox import Sandboxes
from environments.tasks.harbor.folder import HarborTask
from environments.tasks.images.image import Images
from environments.tasks.opening import open_sandbox
from environments.tasks.preparing import Lent, prepare
from environments.tasks.solving import solve
from environments.tasks.task import Task
from environments.tasks.verifying import Verdict, verify


@dataclass(frozen=True)
class Checked:
    """How one task did. Rewards are None where there was none, and `wrong` says what is amiss, in words."""

    name: str
    solved: float | None
    untouched: float | None
    seconds: float
    wrong: tuple[str, ...] = ()


async def check(
    tasks: Sequence[HarborTask], images: Images, sandboxes: Sandboxes, at_once: int = 2, lent: Lent | None = None
) -> AsyncIterator[Checked]:
    """Check tasks side by side, and yield each as it is done."""
    places = asyncio.Semaphore(at_once)
    running = [asyncio.create_task(_checked(task, images, sandboxes, places, lent)) for task in tasks]
    try:
        for done in asyncio.as_completed(running):
            yield await done
    finally:
        for one in running:
            one.cancel()
        await asyncio.gather(*running, return_exceptions=True)


async def _checked(
    read: HarborTask, images: Images, sandboxes: Sandboxes, places: asyncio.Semaphore, lent: Lent | None
) -> Checked:
    async with places:
        began = time.monotonic()
        solved = untouched = None
        said = ""
        wrong: list[str] = []
        try:
            task = await prepare(read, images, lent)
            untouched = (await _verdict(task, sandboxes, solves=False)).reward
            if task.solution is None:
                wrong.append("it has no solution/solve.sh, by which it could be checked")
            else:
                verdict = await _verdict(task, sandboxes, solves=True)
                solved, said = verdict.reward, verdict.output
        except EnvironmentFault as error:
            wrong.append(str(error))
        if solved is not None and solved != 1.0:
            wrong.append(f"its own solution is rewarded {solved:g}, not 1: {said}")
        if untouched is not None and untouched >= 1.0:
            wrong.append("doing nothing is rewarded in full")
        return Checked(read.name, solved, untouched, time.monotonic() - began, tuple(wrong))


async def _verdict(task: Task, sandboxes: Sandboxes, *, solves: bool) -> Verdict:
    async with await open_sandbox(task, sandboxes) as sandbox:
        if solves:
            await solve(task, sandbox)
        return await verify(task, sandbox, sandboxes)
