"""Which episode comes next: fair between task sets, failed ones before new ones, and no task far ahead of another."""

import heapq
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from environments.rollouts.episode import Episode
from environments.rollouts.journal import Waiting
from environments.rollouts.plan import RolloutPlan, TaskSet, episode_of
from environments.tasks.task import Task

Key = tuple[str, str, str]  # task set, task, digest


class EpisodeQueue:
    """The episodes of a plan that are yet to be begun. Times are of any clock, in seconds."""

    def __init__(self, plan: RolloutPlan, journal_id: str, begun: Counter[Key], waiting: Sequence[Waiting]) -> None:
        """Go on after what was `begun`.

        `waiting` are tried again, by the plan's harness; those whose task the plan does not have, are not."""
        self._plan, self._journal_id = plan, journal_id
        self._begun = begun.copy()
        self._taken = Counter[str]()  # by task set
        self.tasks = {key_of(each.name, task): task for each in plan.sets for task in each.tasks}
        self._again: dict[str, list[tuple[float, str, Waiting]]] = {each.name: [] for each in plan.sets}
        for each in waiting:
            if _key(each.episode) in self.tasks:
                self.put_back(replace(each, episode=replace(each.episode, harness=plan.harness)), 0.0)

    def put_back(self, waiting: Waiting, due_at: float) -> None:
        """Have an episode tried again, no sooner than `due_at`."""
        again = self._again[waiting.episode.environment]
        heapq.heappush(again, (due_at, waiting.episode.episode_id, waiting))

    def take(self, now: float) -> Waiting | None:
        """Return the next episode, None where none is to be begun now."""
        for each in sorted(self._plan.sets, key=self._served):
            found = self._next_of(each, now)
            if found is not None:
                self._taken[each.name] += 1
                return found
        return None

    def coming(self, now: float) -> Task | None:
        """Return the task of the episode that `take` would return now, None where it would return none."""
        tasks = (self._next_task(each, now) for each in sorted(self._plan.sets, key=self._served))
        return next((task for task in tasks if task is not None), None)

    @property
    def next_due_at(self) -> float | None:
        """When the next of those that wait is to be tried again; None: none waits."""
        return min((again[0][0] for again in self._again.values() if again), default=None)

    def task_of(self, episode: Episode) -> Task:
        return self.tasks[_key(episode)]

    def _served(self, each: TaskSet) -> float:
        return self._taken[each.name] / each.share

    def _next_of(self, each: TaskSet, now: float) -> Waiting | None:
        if self._is_due(each, now):
            return heapq.heappop(self._again[each.name])[2]
        task = self._new_task(each)
        if task is None:
            return None
        key = key_of(each.name, task)
        number = self._begun[key]
        self._begun[key] += 1
        return Waiting(episode_of(self._journal_id, self._plan.harness, each.name, task, number), 0)

    def _next_task(self, each: TaskSet, now: float) -> Task | None:
        if self._is_due(each, now):
            return self.task_of(self._again[each.name][0][2].episode)
        return self._new_task(each)

    def _is_due(self, each: TaskSet, now: float) -> bool:
        again = self._again[each.name]
        return bool(again) and again[0][0] <= now

    def _new_task(self, each: TaskSet) -> Task | None:
        """Return the task with the fewest episodes, None where all have as many as the plan wants."""
        task = min(each.tasks, key=lambda task: self._begun[key_of(each.name, task)])
        done = self._plan.tries is not None and self._begun[key_of(each.name, task)] >= self._plan.tries
        return None if done else task


def key_of(environment: str, task: Task) -> Key:
    return environment, task.name, task.digest


def _key(episode: Episode) -> Key:
    return episode.environment, episode.task, episode.task_digest
