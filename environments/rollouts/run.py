"""Rollouts from beginning to end: the journal is opened, the plan is run, and the page is written."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import aiohttp

from environments.harness.harness import fit_out
from environments.rollouts.attempt import Means, try_episode
from environments.rollouts.episode import Episode, EpisodeResult
from environments.rollouts.journal import RolloutJournal
from environments.rollouts.plan import RolloutPlan
from environments.rollouts.reporting.page import Page
from environments.rollouts.scheduler import Place, Scheduler, Watcher
from environments.rollouts.service import Service
from environments.rollouts.workshop import Workshop, close_harness, means_of
from environments.tasks.task import Task

_PAGE_EVERY_S: Final = 30.0


@asynccontextmanager
async def executing(plan: RolloutPlan, workshop: Workshop, ray: str | None = None) -> AsyncIterator[Place]:
    """Open where attempts are made: on this machine, or on the nodes of the Ray cluster at that address."""
    if ray is not None:
        from environments.rollouts.cluster import Cluster  # takes seconds to import

        async with Cluster(ray, plan, workshop) as cluster:
            yield Place(cluster.execute)
        return
    means = means_of(workshop, plan.parallel)
    try:
        yield here(plan, means)
    finally:
        await means.sandboxes.close()
        await close_harness(means.harness)


def here(plan: RolloutPlan, means: Means) -> Place:
    """Return this machine as the place of attempts."""

    async def execute(episode: Episode, task: Task) -> EpisodeResult:
        return await try_episode(episode, task, plan, means)

    def expect(task: Task) -> None:
        means.expect(fit_out(task, means.harness).spec)

    return Place(execute, expect)


async def run_rollouts(
    plan: RolloutPlan, journal: RolloutJournal, place: Place, watcher: Watcher, page: Page | None, ending: asyncio.Event
) -> None:
    """Run a plan from where its journal stands, until it is done or `ending`; see `Scheduler.run`.

    `page` is written now and then, and at the end."""
    async with aiohttp.ClientSession() as http:
        scheduler = Scheduler(plan, journal, Service(plan.endpoint, http), place, watcher)
        running = asyncio.create_task(scheduler.run(ending))
        try:
            while not running.done():
                await _forget(journal)
                _write(journal, page)
                await asyncio.wait({running}, timeout=_PAGE_EVERY_S)
            _write(journal, page)
            running.result()
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)


async def _forget(journal: RolloutJournal) -> None:
    """Have the journal forget what is done with, and let others run meanwhile."""
    while journal.forget():  # noqa: ASYNC110 - nothing is waited for
        await asyncio.sleep(0)


def _write(journal: RolloutJournal, page: Page | None) -> None:
    if page is not None:
        page.write(journal)
