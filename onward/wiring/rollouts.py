"""Rollouts as the settings describe them, for the command and for the stage of `onward run`."""

import asyncio
import importlib
import logging
import os
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace

from core import telemetry
from core.errors import ConfigError, from_extra
from core.provenance import made_by
from core.secrets import redacted
from core.settings import LearnerSettings, RolloutSettings, Settings
from core.stages.stage import OK, Stage
from environments.errors import EnvironmentFault
from environments.harness.harness import Budget, Endpoint
from environments.rollouts.episode import Episode, EpisodeResult
from environments.rollouts.journal import RolloutJournal
from environments.rollouts.plan import Patience, RolloutPlan, TaskSet
from environments.rollouts.reporting.page import Page
from environments.rollouts.run import executing, run_rollouts
from environments.rollouts.scheduler import Watcher
from environments.rollouts.workshop import Source, Workshop, harness_name, task_sets
from onward.directory.addresses import find_urls
from onward.directory.layout import Layout
from onward.directory.private import private_folder
from onward.wiring.suites.kept_out import ToldCases, load_suites, said_by

_LOOK_S = 1.0
_URL_EVERY_S = 1.0
READABLE = 0o022
"""What sandboxes stand on must be readable for their users, who exist nowhere else. The journal's folder is private."""
logger = logging.getLogger(__name__)


def workshop_of(layout: Layout, settings: RolloutSettings) -> Workshop:
    """Return what attempts are made with. Raises ConfigError where no task set is named."""
    if not settings.task_sets:
        raise ConfigError("rollouts.task_sets: name at least one")
    sources = (Source(name, each.folders, each.share, each.workload) for name, each in settings.task_sets.items())
    return Workshop(
        tuple(sources),
        settings.prepared or layout.rollouts,
        settings.harness,
        settings.harness_folder,
        settings.requests.workload,
        settings.images,
        settings.lent.variables,
        settings.lent.network,
    )


async def plan_of(workshop: Workshop, settings: Settings, base_url: str) -> RolloutPlan:
    """Read the tasks and return the plan, without those that tell an eval case of what is kept out of training.

    Raises ConfigError for a task that is not well formed, and for a set that has no other task."""
    ours, asked, episode = settings.rollouts, settings.rollouts.requests, settings.rollouts.episode
    headers = {"x-onward-workload": asked.workload, "x-onward-priority": asked.priority}
    context_tokens = episode.context_tokens or settings.serving.context_length or Budget().context_tokens
    try:
        sets, harness = await task_sets(workshop), await harness_name(workshop)
    except EnvironmentFault as error:
        raise ConfigError(f"rollouts: {error}") from error
    return RolloutPlan(
        sets=_without_told_cases(sets, settings.learner),
        harness=harness,
        endpoint=Endpoint(base_url, asked.api_key, settings.serving.model_name, headers),
        budget=Budget(episode.tokens, episode.calls, episode.critical_path_s, context_tokens),
        tries=ours.tries,
        parallel=ours.parallel or os.cpu_count() or 1,
        out_of_time=episode.out_of_time,
        patience=Patience(attempts=episode.attempts),
    )


def _without_told_cases(sets: Sequence[TaskSet], settings: LearnerSettings) -> tuple[TaskSet, ...]:
    """Leave out the tasks that ask the same as an eval case, or have a solution like its; a warning names them."""
    suites = load_suites(settings.admission.keep_out)
    cases, kept = ToldCases(suites), list[TaskSet]()
    for each in sets if suites else ():
        told = {task.name: cases.told_by(*said_by(task)) for task in each.tasks}
        for name, found in told.items():
            for (suite, case), how in found.items():
                said = "task set %s: %s is left out: it has the same %s as the case %r of %s"
                logger.warning(said, each.name, name, how, case, suite)
        tasks = tuple(task for task in each.tasks if not told[task.name])
        if not tasks:
            raise ConfigError(
                f"rollouts.task_sets.{each.name}: each of its tasks tells a case that learner.admission.keep_out names"
            )
        kept.append(replace(each, tasks=tasks))
    return tuple(kept) if suites else tuple(sets)


async def roll_out(
    layout: Layout,
    settings: Settings,
    base_url: str,
    watch: Callable[[RolloutPlan, RolloutJournal], Watcher],
    ending: asyncio.Event,
) -> None:
    """Run the rollouts that the settings describe, until they are done or `ending`.

    Raises ConfigError for a setting or a task at fault, or where others run them on this directory."""
    if settings.rollouts.ray is not None:
        with from_extra("ray", "rollouts.ray"):
            importlib.import_module("environments.rollouts.cluster")  # takes seconds
    private_folder(layout.rollouts)
    os.umask(READABLE)
    workshop = workshop_of(layout, settings.rollouts)
    plan = await plan_of(workshop, settings, base_url)
    try:
        journal = RolloutJournal(layout.rollouts / "journal.db")
    except EnvironmentFault as error:
        raise ConfigError(f"rollouts: {error}") from error
    try:
        async with executing(plan, workshop, settings.rollouts.ray) as place:
            page = Page(layout.rollouts / "report.html", made_by("onward", redacted), settings.serving.model_name)
            await run_rollouts(plan, journal, place, watch(plan, journal), page, ending)
    finally:
        journal.close()


class Rollouts(Stage):
    """Rollouts as a stage: a thread of their own makes them, from when the service can be found until they are done.

    What ends them otherwise ends the stage, too, so that it is started again and its alarm is opened."""

    def __init__(self, layout: Layout, settings: Settings) -> None:
        super().__init__()
        self._layout, self._settings = layout, settings
        self._loop = asyncio.new_event_loop()
        self._ending = asyncio.Event()
        self._has_begun = False
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="rollouts", daemon=True)

    @property
    def state(self) -> str:
        return OK if self._has_begun else "starting"

    def begin(self) -> None:
        self._thread.start()

    def tick(self) -> float:
        if self._failure is not None:
            raise self._failure
        return _LOOK_S

    def close(self) -> None:
        if self._thread.is_alive():
            with suppress(RuntimeError):  # they are done, and the loop was closed in this very moment
                self._loop.call_soon_threadsafe(self._ending.set)
            self._thread.join()

    def _run(self) -> None:
        """Run in the thread. Sandboxes die with it, and the journal belongs to it."""
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            task = self._loop.create_task(self._roll_out())
            runner.run(_ended(task))
            self._failure = task.exception()
        self.wake()

    async def _roll_out(self) -> None:
        base_url = self._settings.rollouts.requests.base_url
        while base_url is None and not self._ending.is_set():
            base_url = _own_url(self._layout)
            await _moment(self._ending, _URL_EVERY_S if base_url is None else 0.0)
        if base_url is not None:
            await roll_out(self._layout, self._settings, base_url, self._watch, self._ending)
            logger.info("the rollouts are done")

    def _watch(self, _plan: RolloutPlan, _journal: RolloutJournal) -> "Quiet":
        self._has_begun = True
        return Quiet()


class Quiet:
    """Watches and counts, and shows nothing: a service's log is no place for a bar."""

    def began(self, episode: Episode) -> None:
        """Do nothing."""

    def ended(self, result: EpisodeResult, *, again: bool) -> None:
        part = result.part or ""
        telemetry.ROLLOUTS.labels(task_set=result.episode.environment, end=result.verdict, part=part).inc()


def _own_url(layout: Layout) -> str | None:
    try:
        return find_urls(layout.root)[0] + "/v1"
    except ConfigError:
        return None


async def _ended(task: "asyncio.Task[None]") -> None:
    await asyncio.wait({task})


async def _moment(ending: asyncio.Event, seconds: float) -> None:
    with suppress(TimeoutError):
        await asyncio.wait_for(ending.wait(), seconds)
