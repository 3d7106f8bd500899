"""The baseline of the other faults: nothing is harmed."""

import json
from pathlib import Path

import pytest
from fault_world import World
from service_tree import simulate

pytestmark = pytest.mark.timeout(900)


def test_simulated_users_lose_nothing(world: World, tmp_path: Path) -> None:
    users = simulate(world.service, tmp_path / "demo", seconds=10, rate=3)
    users.communicate(timeout=300)
    report = json.loads((tmp_path / "demo" / "report.json").read_text())
    assert (report["lost_turns"], report["lost_outcomes"], report["failed_requests"]) == (0, 0, 0), report["failures"]
    assert report["turns"] > 10
