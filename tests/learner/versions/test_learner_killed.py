"""A learner that is killed at random moments, over and over, trains on everything once, to the same weights."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import pytest
from logged_world import World, lineage_of_newest, logged_past, manifests, publications, settle
from waiting import wait_for

from learner.versions.manifest import Manifest, prove_exactly_once

MakeWorld = Callable[[str], World]
_LEARNERS = """
import os
import signal
import sys
from datetime import timedelta
from pathlib import Path
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
    learner = world.learner(
        settings={"batch.turns": 4, "batch.min_turns": 2, "checkpoints.every_s": 0.5, "batch.backlog_turns": 5000}
    )
    rounds = Rounds("learner", learner)
    while len(blobs.list("manifests/")) < most and rounds.step(0.0):
        pass
    signal.pause()  # until it is killed: a busy machine may hold up who kills it for longer than all the work takes

for line in sys.stdin:
    pid = os.fork()
    if pid == 0:
        directory, most = line.rsplit(maxsplit=1)
        run(Path(directory), int(most))
        os._exit(0)
    print(pid, flush=True)
    print(os.waitpid(pid, 0)[1], flush=True)
"""


@pytest.fixture
def learners() -> Iterator["subprocess.Popen[str]"]:
    """Start a process that forks a learner for each directory it is sent, so that torch is imported once.

    With the directory comes how many manifests the learner may have made when it is killed. The process prints the
    learner's pid, and later its exit status."""
    root = Path(__file__).resolve().parents[3]
    found = ("tests/learner/parts", "tests/contracts/parts", "tests/parts", "kernels", ".")
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
    """Kill a learner with SIGKILL some time after it has written this many more manifests."""
    assert learners.stdin is not None
    assert learners.stdout is not None
    target = len(world.blobs.list("manifests/")) + manifests
    learners.stdin.write(f"{world.directory} {target + 2}\n")
    learners.stdin.flush()
    pid = int(learners.stdout.readline())

    def has_made_them() -> bool:
        os.kill(pid, 0)  # fails when it is gone
        return len(world.blobs.list("manifests/")) >= target

    wait_for(has_made_them)
    time.sleep(moment.uniform(0, 0.1))  # anywhere in an update
    os.kill(pid, signal.SIGKILL)
    assert int(learners.stdout.readline()) == signal.SIGKILL, "it was to be killed at work"


def settled(world: World) -> list[Manifest]:
    """Return the lineage once there is nothing left to learn."""
    last = world.learner(
        settings={"batch.turns": 4, "batch.min_turns": 2, "checkpoints.every_s": 0.5, "batch.backlog_turns": 5000}
    )
    settle(last)
    last.close()
    return lineage_of_newest(world)


def digests(world: World, lineage: list[Manifest]) -> list[str]:
    with world.store.look() as view:
        made = [view.policies.get(manifest.version) for manifest in lineage]
    return [policy.digest for policy in made if policy is not None]


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.deep)])
def test_killed_again_and_again_it_uses_everything_once_and_is_the_same_bit_for_bit(
    make_world: MakeWorld, learners: "subprocess.Popen[str]", seed: int
) -> None:
    world, undisturbed = make_world("a"), make_world("b")
    past = [pair for past_seed in range(4) for pair in logged_past(24, seed=past_seed)]
    for each in (world, undisturbed):
        each.tell(*past)
    moment = Random(seed)
    for more in (1, 4, 2, 6):
        kill_at_work(learners, world, more, moment)
    lineage = settled(world)
    made = digests(world, lineage)
    assert len(made) == len(past) // 4
    assert made == digests(undisturbed, settled(undisturbed))
    assert len(lineage) == len(manifests(world)) == len(past) // 4
    prove_exactly_once(lineage)
    used = [(record.inference_id, record.revision) for made in lineage for record in made.turns]
    assert len(used) == len(set(used))
    assert set(used) == {(reward.inference_id, reward.revision) for _, reward in past}
    versions = [made.version for made in lineage]
    assert versions == sorted(versions)
    assert set(versions) <= set(publications(world))
