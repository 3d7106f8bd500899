"""Rollouts on a machine that fails, against a real service: every failure is named, and none is a reward of 0."""

import asyncio
from collections.abc import Callable
from pathlib import Path

from kept_images import IMAGES
from needed import need_root
from service_tree import Service

from bench.environments.planted_failures import FAULTS, run

EPISODES = 80


def test_planted_failures_are_named_and_are_no_rewards(make_service: Callable[..., Service], tmp_path: Path) -> None:
    need_root()
    service = make_service(learner__enabled=False).start()
    outcome = asyncio.run(
        run(service.url + "/v1", service.directory / "store.db", tmp_path, IMAGES / "roots", EPISODES)
    )
    assert outcome.hit.keys() == set(FAULTS)
    assert [(each.part, each.why) for each in outcome.unnamed] == []
    assert (outcome.zeros, outcome.missing) == (0, 0)
    judged = sum(each.reward == 1 for each in outcome.results.values())
    assert judged + outcome.given_up == EPISODES
