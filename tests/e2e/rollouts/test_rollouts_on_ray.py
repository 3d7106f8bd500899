"""Rollouts on a Ray cluster of two nodes on this machine, one of which is killed in their midst."""

import asyncio
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from kept_images import KEPT
from rollouts_world import Told, Watched, plan_of, told_service
from task_folders import write_task

from environments.rollouts.episode import EpisodeResult
from environments.rollouts.journal import RolloutJournal
from environments.rollouts.run import executing, run_rollouts
from environments.rollouts.workshop import Source, Workshop, task_sets

EPISODES = 16
SLOW = "#!/bin/sh\nsleep 1.5\necho 1 >answer\n"
JUDGES = "#!/bin/sh\ntest -f answer && echo 1 >/logs/verifier/reward.txt || echo 0 >/logs/verifier/reward.txt\n"


@pytest.fixture
def cluster() -> Iterator[Any]:
    """Start a head without processors, where no episode runs, and two nodes with two each."""
    ray_cluster = pytest.importorskip("ray.cluster_utils")
    made = ray_cluster.Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    for _ in range(2):
        made.add_node(num_cpus=2)
    made.wait_for_nodes()
    yield made
    made.shutdown()


@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_node_that_is_killed_loses_no_episode(cluster: Any, tmp_path: Path) -> None:
    folder = write_task(tmp_path / "task", files={"solution/solve.sh": SLOW}, tests=JUDGES)
    workshop = Workshop((Source("own", (folder,)),), KEPT, "oracle", images={"*": "machine"})

    async def test() -> tuple[Told, list[EpisodeResult]]:
        (tasks,) = await task_sets(workshop)
        victim, killed, busy = sorted(cluster.worker_nodes, key=str)[0], False, Counter[str]()

        def kill_one(result: EpisodeResult) -> None:
            nonlocal killed
            if not killed and busy[victim.node_id]:  # both of its attempts may have ended at once
                killed = True
                kill_node(victim)

        async with told_service() as (told, url):
            plan = plan_of(tasks, url=url, tries=EPISODES, parallel=4)
            journal = RolloutJournal(tmp_path / "journal.db")
            async with executing(plan, workshop, cluster.address) as place:
                busy = place.execute.__self__._busy  # type: ignore[attr-defined]  # attempts of each node
                watched = Watched(on_end=kill_one)
                await asyncio.wait_for(
                    run_rollouts(plan, journal, place, watched, tmp_path / "report.html", asyncio.Event()), 200
                )
            results = list(journal.attempts(1000))
            journal.close()
            return told, results

    told, results = asyncio.run(test())
    judged = [each for each in results if each.reward == 1.0]
    failed = [each for each in results if each.reward is None]
    assert len(judged) == len({each.episode.episode_id for each in judged}) == EPISODES
    assert failed, "the node was killed when it had nothing to do"
    assert {(each.verdict, each.part) for each in failed} == {("infrastructure", "machine")}
    assert all("Actor" in each.why or "Node" in each.why or "Worker" in each.why for each in failed)
    assert len(told.of("task_reward")) == EPISODES


def kill_node(node: Any) -> None:
    """Kill all processes of a node at once, as when its machine loses its power.

    Some of them end by themselves once the first is dead, so one that is gone already is as good as killed.
    """
    raylet = next(each for each in node.all_processes["raylet"])
    process = psutil.Process(raylet.process.pid)
    for each in [process, *process.children(recursive=True)]:
        with suppress(psutil.NoSuchProcess):
            each.kill()
