"""Attempts on the nodes of a Ray cluster: Ray places the actors and notices when one is gone; the journal stays here.

Every node has one actor, which opens sandboxes there and works in them. An attempt goes to the node with the most room.
Whatever a lost node was doing is a failure of the machine, and is tried again on another. Folders of tasks, and this
program, lie at the same places on all nodes."""

import asyncio
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from types import TracebackType
from typing import Any, Final, Self

import ray
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from environments.errors import EnvironmentFault
from environments.rollouts.attempt import Means, try_episode
from environments.rollouts.episode import Episode, EpisodeResult
from environments.rollouts.plan import RolloutPlan
from environments.rollouts.queue import Key, key_of
from environments.rollouts.workshop import Workshop, means_of, task_sets
from environments.tasks.task import Task

_SHUNNED_S: Final = 30.0  # is a node whose actor did not answer
_ROOM = 10_000  # calls of one actor at once: how many there are is the scheduler's business


class Node:
    """What makes attempts on one node. Its tasks are read there, and are the driver's by their digest.

    The plan has no key: Ray keeps what an actor is made of. The key comes with each attempt, which nobody keeps."""

    def __init__(self, plan: RolloutPlan, workshop: Workshop) -> None:
        self._plan, self._workshop = plan, workshop
        self._means: Means | None = None
        self._tasks: Mapping[Key, Task] = {}
        self._prepared = asyncio.Lock()

    async def prepare(self) -> None:
        """Read the tasks and prepare their images, once. Raises EnvironmentFault."""
        async with self._prepared:
            if self._means is None:
                sets = await task_sets(self._workshop)
                self._tasks = {key_of(each.name, task): task for each in sets for task in each.tasks}
                self._means = means_of(self._workshop, self._plan.parallel)

    async def attempt(self, episode: Episode, api_key: str | None) -> EpisodeResult:
        """Make one attempt, with the service's key.

        A node whose folders lack that very task has failed, and says so."""
        began_at = time.time()
        try:
            await self.prepare()
        except EnvironmentFault as error:
            return _failed(episode, began_at, "image", str(error))
        task = self._tasks.get((episode.environment, episode.task, episode.task_digest))
        if task is None:
            return _failed(episode, began_at, "machine", f"the node has no task {episode.task} of that digest")
        assert self._means is not None
        return await try_episode(episode, task, _with_key(self._plan, api_key), self._means)


class Cluster:
    """The nodes of one cluster, for as long as it is entered."""

    def __init__(self, address: str, plan: RolloutPlan, workshop: Workshop) -> None:
        self._address, self._plan, self._workshop = address, plan, workshop
        self._nodes: dict[str, Any] = {}
        self._busy = Counter[str]()
        self._shunned_until_s: dict[str, float] = {}

    async def __aenter__(self) -> Self:
        await asyncio.to_thread(
            ray.init, self._address, namespace="onward-rollouts", log_to_driver=False, ignore_reinit_error=True
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for handle in self._nodes.values():
            ray.kill(handle)
        await asyncio.to_thread(ray.shutdown)

    async def execute(self, episode: Episode, _: Task) -> EpisodeResult:
        """Make one attempt on the node with the most room."""
        began_at = time.time()
        try:
            cpus = await self._look()
            if not cpus:
                return _failed(episode, began_at, "machine", "the cluster has no node with a processor")
            return await self._attempt(self._choose(cpus), episode)
        except RayError as error:
            return _failed(episode, began_at, "machine", f"{type(error).__name__}: {error}")

    def _choose(self, cpus: Mapping[str, float]) -> str:
        """Return the node with the fewest attempts for its processors; one that failed of late only if all did.

        A node that lost its power counts as alive until Ray has missed it for a while, and has much room meanwhile."""
        now_s = time.monotonic()
        return min(cpus, key=lambda node: (self._shunned_until_s.get(node, 0.0) > now_s, self._busy[node] / cpus[node]))

    async def _attempt(self, node: str, episode: Episode) -> EpisodeResult:
        self._busy[node] += 1
        try:
            result: EpisodeResult = await self._nodes[node].attempt.remote(episode, self._plan.endpoint.api_key)
        except RayError:
            self._shunned_until_s[node] = time.monotonic() + _SHUNNED_S
            raise
        finally:
            self._busy[node] -= 1
        return result

    async def _look(self) -> dict[str, float]:
        """Return the processors of each node that lives, after starting an actor where there is none."""
        found = await asyncio.to_thread(ray.nodes)
        cpus = {node["NodeID"]: node["Resources"].get("CPU", 0.0) for node in found if node["Alive"]}
        cpus = {node: count for node, count in cpus.items() if count > 0}
        for node in self._nodes.keys() - cpus.keys():
            del self._nodes[node]
        for node in cpus.keys() - self._nodes.keys():
            self._nodes[node] = self._start(node)
        return cpus

    def _start(self, node: str) -> Any:
        placed = NodeAffinitySchedulingStrategy(node_id=node, soft=False)
        made = ray.remote(Node).options(num_cpus=0, max_concurrency=_ROOM, max_restarts=-1, scheduling_strategy=placed)
        return made.remote(_with_key(self._plan, None), self._workshop)


def _with_key(plan: RolloutPlan, api_key: str | None) -> RolloutPlan:
    return replace(plan, endpoint=replace(plan.endpoint, api_key=api_key))


def _failed(episode: Episode, began_at: float, part: str, why: str) -> EpisodeResult:
    return EpisodeResult(episode, "infrastructure", None, None, began_at, time.time(), part=part, why=why[:2000])
