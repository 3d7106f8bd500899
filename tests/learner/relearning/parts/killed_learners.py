"""Learners in processes of their own, which are killed at work."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest
from logged_world import World

SETTINGS: dict[str, object] = {
    "batch.turns": 4,
    "batch.min_turns": 2,
    "batch.backlog_turns": 5000,
    "checkpoints.every_s": 0.5,
    "admission.max_divergence": 1000.0,
    "admission.min_ess": 0.0,
}
_LEARNERS = """
import os
import signal
import sys
from datetime import timedelta
from pathlib import Path
from killed_learners import SETTINGS
from logged_world import START, World
from core.blobs import FsspecBlobs
from core.clock import ManualClock
from core.stages.rounds import Rounds
from core.store import open_sqlite
from ingest.sqlite.log import SqliteEventLog
from serving.weights.published import BlobWeights

def run(directory, most):
    blobs = FsspecBlobs(directory / "blobs")
    log, store = SqliteEventLog(directory / "log.db", 2, 0.01), open_sqlite(directory / "store.db")
    world = World(directory, log, store, blobs, BlobWeights(blobs), ManualClock(START + timedelta(days=1)))
    learner = world.learner(settings=SETTINGS)
    rounds = Rounds("learner", learner)
    while len(blobs.list("manifests/")) < most and rounds.step(0.0):
        pass
    signal.pause()  # for its end, where who is to bring it is late

for line in sys.stdin:
    pid = os.fork()
    if pid == 0:
        most, directory = line.strip().split(" ", 1)
        run(Path(directory), int(most))
        os._exit(0)
    print(pid, flush=True)
    print(os.waitpid(pid, 0)[1], flush=True)
"""


@pytest.fixture
def learners() -> Iterator["subprocess.Popen[str]"]:
    """Start a process that forks a learner for each directory it is sent, so that torch is imported once.

    It prints the learner's pid, and later its exit status."""
    root = Path(__file__).resolve().parents[4]
    found = (
        "tests/learner/relearning/parts",
        "tests/learner/parts",
        "tests/contracts/parts",
        "tests/parts",
        "kernels",
        ".",
    )
    paths = os.pathsep.join(str(root / path) for path in found)
    process = subprocess.Popen(
        [sys.executable, "-c", _LEARNERS],
        env={**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        yield process


def kill_at_work(learners: "subprocess.Popen[str]", world: World, manifests: int, moment: Random) -> None:
    """Kill a learner with SIGKILL some time after it has written this many more manifests.

    It writes one more at most: on a busy machine the end comes late, and all could be learned by then."""
    assert learners.stdin is not None
    assert learners.stdout is not None
    target = len(world.blobs.list("manifests/")) + manifests
    learners.stdin.write(f"{target + 1} {world.directory}\n")
    learners.stdin.flush()
    pid = int(learners.stdout.readline())
    try:
        while len(world.blobs.list("manifests/")) < target:
            os.kill(pid, 0)  # fails when it is gone
            time.sleep(0.002)
        time.sleep(moment.uniform(0, 0.1))  # anywhere in an update
    finally:
        os.kill(pid, signal.SIGKILL)
    assert int(learners.stdout.readline()) == signal.SIGKILL, "it was to be killed at work"
