"""SIGKILL of every stage, at random moments, under load."""

import random

import pytest
from fault_counts import settle
from fault_table import KILLS, FaultTable
from fault_users import Users
from fault_world import World

pytestmark = pytest.mark.timeout(7200)
_MOST_TURNS = 12  # between one's return and the next kill


@pytest.mark.parametrize("stage", ["api", "ingest", "score", "learner", "release", "engine"])
def test_a_killed_stage_costs_nothing_acknowledged(world: World, users: Users, table: FaultTable, stage: str) -> None:
    chance = random.Random(stage)
    users.wait_for_more(1)
    for _ in range(KILLS):
        users.wait_for_more(chance.randrange(_MOST_TURNS))
        world.kill(chance.choice(world.names(stage)))
    what = "the host of an engine, with it," if stage == "engine" else stage
    table.add(f"{what} killed {KILLS} times", settle(world, users))
