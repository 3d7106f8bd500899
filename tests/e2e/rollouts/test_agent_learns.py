"""Rollouts beside nobody: the served model works on the simulator's tasks, and versions come of their rewards alone."""

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import msgspec
from kept_images import KEPT
from service_tree import Service, wait_for

from core.codec import decoder
from core.events import Reward
from environments.rollouts.episode import EpisodeResult
from simulator.tasks.folders import write_folders

VERSIONS = 3


def settings(tasks: Path) -> dict[str, str]:
    return {
        "rollouts__enabled": "true",
        "rollouts__harness": "onward-lines",
        "rollouts__task_sets": f'{{templates = {{folders = ["{tasks}"]}}}}',
        "rollouts__images": '{"*" = "machine"}',
        "rollouts__prepared": str(KEPT),
        "rollouts__episode__context_tokens": "512",
        "rollouts__parallel": "4",
    }


def attempts(service: Service) -> list[EpisodeResult]:
    """Return all attempts of a service that has ended: the journal is its own while it runs."""
    with closing(sqlite3.connect(service.directory / "rollouts" / "journal.db")) as journal:
        rows = journal.execute("SELECT result FROM attempts").fetchall()
    return [msgspec.json.decode(row, type=EpisodeResult) for (row,) in rows]


def newest(service: Service) -> int:
    return max(policy["version"] for policy in service.get("/v1/policies")["data"])


def test_rewards_of_tasks_make_versions_that_work_on_the_next(
    make_service: Callable[..., Service], tmp_path: Path
) -> None:
    write_folders(tmp_path, taught=12, held_out=0, seed=0)
    service = make_service(**settings(tmp_path / "taught")).start()
    wait_for(lambda: newest(service) > 2 * VERSIONS, 240, "versions of the rewards of tasks")
    service.stop()
    interrupted = "the program that ran the episode was ended"
    ended = [each for each in attempts(service) if each.why != interrupted]
    assert [each.why for each in ended if each.verdict != "judged"] == []
    assert {each.reward for each in ended} == {0.0, 1.0}
    assert len({version for each in ended if each.work for version in each.work.policy_versions}) > VERSIONS
    with closing(sqlite3.connect(service.directory / "store.db")) as store:
        records = store.execute("SELECT record FROM rewards").fetchall()
        told = store.execute("SELECT session_id FROM outcomes WHERE name = 'task_reward'").fetchall()
    assert {decoder(Reward).decode(record).environment for (record,) in records} == {"simulated"}
    assert told
    assert {session for (session,) in told} <= {each.episode.session_id for each in ended}
