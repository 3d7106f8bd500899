"""The scheduler of one machine: so many episodes at once, until the plan is done or somebody says to end.

It holds no state that the journal lacks. Where episodes run is not its business: here, or on another node."""

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol

from environments.rollouts.episode import Episode, EpisodeResult
from environments.rollouts.journal import RolloutJournal, Waiting
from environments.rollouts.plan import Patience, RolloutPlan
from environments.rollouts.queue import EpisodeQueue
from environments.rollouts.reporter import Reporter
from environments.rollouts.service import Service
from environments.tasks.task import Task

Execute = Callable[[Episode, Task], Awaitable[EpisodeResult]]
"""Makes one attempt, wherever."""


@dataclass(frozen=True)
class Place:
    """Where attempts are made. `expect` is told which task comes next, while there is no room for it yet."""

    execute: Execute
    expect: Callable[[Task], None] = lambda task: None


logger = logging.getLogger(__name__)


class Watcher(Protocol):
    """Is told what happens, as it happens."""

    def began(self, episode: Episode) -> None: ...

    def ended(self, result: EpisodeResult, *, again: bool) -> None: ...


class Scheduler:
    """Runs a plan from where its journal stands."""

    def __init__(
        self, plan: RolloutPlan, journal: RolloutJournal, service: Service, place: Place, watcher: Watcher
    ) -> None:
        self._plan, self._journal, self._service = plan, journal, service
        self._place, self._watcher = place, watcher
        self._queue = EpisodeQueue(plan, journal.id, journal.begun(), journal.waiting())
        self._reporter = Reporter(journal, service)
        self._under_way: dict[asyncio.Task[EpisodeResult], Waiting] = {}
        self._ready: asyncio.Task[None] | None = None  # is waited for before more are begun
        self._failed_in_a_row = 0
        self._rests_until_s = 0.0

    async def run(self, ending: asyncio.Event) -> None:
        """Run until all episodes have ended and the service knows, or until `ending`.

        Then what is under way is interrupted, and goes on as another attempt the next time."""
        telling = asyncio.create_task(self._reporter.keep_telling())
        end = asyncio.create_task(ending.wait())
        last = asyncio.create_task(_nothing())
        self._reporter.news()
        try:
            await self._run_all(end, telling)
            await _cancel(telling)
            last = asyncio.create_task(self._reporter.tell_all())
            await asyncio.wait({end, last}, return_when="FIRST_COMPLETED")
            if last.done():
                last.result()
        finally:
            await _cancel(telling, end, last, *self._under_way, *self._awaited)
            self._journal.interrupt()

    async def _run_all(self, end: "asyncio.Task[bool]", telling: "asyncio.Task[None]") -> None:
        while not end.done():
            if self._ready is not None and self._ready.done():
                self._ready = None
            rests = time.monotonic() < self._rests_until_s
            if self._ready is None and not rests:
                self._fill()
            due_at = self._rests_until_s if rests else self._queue.next_due_at
            if not self._under_way and due_at is None and self._ready is None:
                return
            has_room = self._ready is None and not self._is_full
            wait_s = None if due_at is None or not has_room else max(0.0, due_at - time.monotonic())
            waits = {end, telling, *self._under_way, *self._awaited}
            await asyncio.wait(waits, timeout=wait_s, return_when="FIRST_COMPLETED")
            if telling.done():
                telling.result()  # it never ends but by an error
            for done in [task for task in self._under_way if task.done()]:
                self._end(self._under_way.pop(done), done)

    @property
    def _is_full(self) -> bool:
        return len(self._under_way) >= self._plan.parallel

    @property
    def _awaited(self) -> "list[asyncio.Task[None]]":
        return [] if self._ready is None else [self._ready]

    def _fill(self) -> None:
        """Begin as many as there is room for, and have the next one expected."""
        while not self._is_full:
            waiting = self._queue.take(time.monotonic())
            if waiting is None:
                return
            episode = waiting.episode
            self._journal.begin(episode)
            task = asyncio.create_task(_attempt(self._place.execute, episode, self._queue.task_of(episode)))
            self._under_way[task] = waiting
            self._watcher.began(episode)
        coming = self._queue.coming(time.monotonic())
        if coming is not None:
            self._place.expect(coming)

    def _end(self, waiting: Waiting, done: "asyncio.Task[EpisodeResult]") -> None:
        result = _result_of(done, waiting.episode)
        patience, failures = self._plan.patience, waiting.failures + 1
        failed = result.verdict == "infrastructure"
        again = failed and failures < patience.attempts
        self._journal.end(result, again=again)
        self._reporter.news()
        self._failed_in_a_row = self._failed_in_a_row + 1 if failed else 0
        if failed:
            logger.warning("episode %s, attempt %d: %s", result.episode.task, result.episode.attempt, result.why)
            self._rest()
            if result.part == "service" and self._ready is None:  # all others would fail alike
                self._ready = asyncio.create_task(self._service.ready())
        if again:
            wait_s = _pause_s(patience, failures - 1)
            episode = replace(waiting.episode, attempt=waiting.episode.attempt + 1)
            # Those that failed together shall not come back together.
            due_at = time.monotonic() + wait_s * random.uniform(0.5, 1.0)
            self._queue.put_back(Waiting(episode, failures), due_at)
        self._watcher.ended(result, again=again)

    def _rest(self) -> None:
        """Begin none for a while where nothing but failures came: what fails at once would be begun without end."""
        patience = self._plan.patience
        too_many = self._failed_in_a_row - max(patience.attempts, self._plan.parallel)
        if too_many >= 0:
            self._rests_until_s = time.monotonic() + _pause_s(patience, too_many)


def _pause_s(patience: Patience, doubled: int) -> float:
    return min(patience.backoff_seconds * 2.0 ** min(doubled, 64), patience.longest_backoff_seconds)


async def _attempt(execute: Execute, episode: Episode, task: Task) -> EpisodeResult:
    return await execute(episode, task)


def _result_of(done: "asyncio.Task[EpisodeResult]", episode: Episode) -> EpisodeResult:
    """Return the attempt's result. An error that nobody foresaw is a failure of this program, not of the model."""
    failure = asyncio.CancelledError("it was cancelled") if done.cancelled() else done.exception()
    if failure is None:
        return done.result()
    logger.error("episode %s failed in a way that nobody foresaw", episode.task, exc_info=failure)
    now = time.time()
    why = f"{type(failure).__name__}: {failure}"
    return EpisodeResult(episode, "infrastructure", None, None, now, now, part="machine", why=why[:2000])


async def _nothing() -> None:
    """Do nothing."""


async def _cancel(*tasks: "asyncio.Task[Any]") -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
