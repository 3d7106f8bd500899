"""A scorer that is killed while it works."""

import random
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCORER = """
import sys
from pathlib import Path
from core.clock import ManualClock
from core.reward_spec import RewardSpec
from core.settings import ScoringSettings
from core.stages.rounds import Rounds
from core.store import open_sqlite
from ingest.sqlite.log import SqliteEventLog
from scoring.stage import Scorer
from datetime import datetime, UTC

directory = Path(sys.argv[1])
log = SqliteEventLog(directory / "log.db", partitions=4, poll_s=0.001)
spec = RewardSpec.model_validate_json((directory / "spec.json").read_text())
settings = ScoringSettings(tick_s=0.001, batch_records=5)
clock = ManualClock(datetime(2026, 1, 1, tzinfo=UTC))
scorer = Scorer(log, open_sqlite(directory / "store.db"), spec, settings, clock)
rounds = Rounds("scorer", scorer)
print("ready", flush=True)
for _permit in sys.stdin:
    while not rounds.step(0.05):
        pass
    print("step", flush=True)
"""


def start(directory: Path) -> "subprocess.Popen[str]":
    command = [sys.executable, "-c", SCORER, str(directory)]
    return subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


@pytest.mark.parametrize("seed", [0, 1])
def test_kill_9_loses_and_doubles_nothing(lab: ModuleType, world: Any, seed: int) -> None:
    """The scorer is killed at random moments, over and over, until everything is scored."""
    rng = random.Random(seed)
    events = lab.random_events(seed, 300)
    (world.directory / "spec.json").write_text(lab.SPEC.model_dump_json())
    world.append(*events)
    for _ in range(4):
        process = start(world.directory)
        try:
            assert process.stdin is not None
            assert process.stdout is not None
            lines = rng.randint(1, 10)  # that it is ready, and a step each
            process.stdin.write("\n" * lines)  # as many steps as it may take, however late it is killed
            process.stdin.flush()
            for _ in range(lines):
                assert process.stdout.readline(), "the scorer ended by itself"
            time.sleep(rng.uniform(0, 0.01))  # some moment of the last step
        finally:
            process.kill()
            process.communicate()
    partial = world.rewards()
    lab.drain(world.scorer(lab.SPEC))
    expected = lab.score(lab.SPEC, events)
    rewards = world.rewards()
    assert 0 < len(partial) < len(expected), "it was killed in the middle"
    assert sorted(rewards, key=repr) == sorted(expected, key=repr)
    assert {repr(reward) for reward in world.published()} == {repr(reward) for reward in expected}
