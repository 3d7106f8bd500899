"""What Ray is given of a plan, by a stand-in for its actors; a real cluster is in the end-to-end tests."""

import asyncio
import pickle
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rollouts_world import HARNESS, plan_of, task

from environments.harness.harness import Endpoint
from environments.rollouts.episode import EpisodeResult
from environments.rollouts.plan import TaskSet, episode_of
from environments.rollouts.workshop import Workshop

ray = pytest.importorskip("ray")
KEY = "key-of-the-service"


def test_the_key_is_in_nothing_that_ray_keeps(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from environments.rollouts.cluster import Cluster, Node

    kept: list[bytes] = []
    worked_with: list[str | None] = []

    async def try_episode(episode: Any, _: Any, plan: Any, __: Any) -> EpisodeResult:
        worked_with.append(plan.endpoint.api_key)
        return EpisodeResult(episode, "judged", 1.0, None, 1.0, 2.0)

    def made(*arguments: Any) -> Any:
        kept.append(pickle.dumps(arguments))
        node = Node(*arguments)
        node._tasks = {("own", "t", "d"): task("t")}
        node._means = SimpleNamespace()  # type: ignore[assignment]  # it is prepared
        return SimpleNamespace(attempt=SimpleNamespace(remote=node.attempt))

    actors = SimpleNamespace(options=lambda **_: SimpleNamespace(remote=made))
    monkeypatch.setattr("environments.rollouts.cluster.ray.remote", lambda _: actors)
    monkeypatch.setattr(
        "environments.rollouts.cluster.ray.nodes",
        lambda: [{"NodeID": "0" * 56, "Alive": True, "Resources": {"CPU": 2.0}}],
    )
    monkeypatch.setattr("environments.rollouts.cluster.try_episode", try_episode)
    plan = plan_of(TaskSet("own", (task("t"),)), endpoint=Endpoint("http://127.0.0.1:1/v1", KEY))
    episode = episode_of("j", HARNESS, "own", task("t"), 0)
    result = asyncio.run(Cluster("auto", plan, Workshop((), tmp_path)).execute(episode, task("t")))
    assert (result.reward, worked_with) == (1.0, [KEY])
    assert len(kept) == 1
    assert KEY.encode() not in kept[0]
