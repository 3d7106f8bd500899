"""A crash at any byte of a checkpoint's write leaves the last good one, and the next write succeeds."""

import random
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import checkpoint_script
import pytest

from core.ids import base_ref
from learner.versions.checkpoint import Checkpoints

FILES = ("model.safetensors", "state.pt", "memory.pt", "manifest.msgpack.zst", "meta.msgpack")


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a directory with a whole checkpoint of version 2."""
    directory = tmp_path_factory.mktemp("good")
    checkpoint_script.write(directory, 2)
    return directory


def drawn(good: Path) -> dict[int, str]:
    """Return bounds, each with the file that it cuts off: the edges and random places within each file."""
    sizes = [(good / "checkpoint-00000002" / name).stat().st_size for name in FILES]
    assert sizes == sorted(sizes)
    chance = random.Random(7)
    found: dict[int, str] = {}
    for name, low, high in zip(FILES, [0, *sizes], sizes, strict=False):
        found |= dict.fromkeys([low, high - 1, *(chance.randrange(low, high) for _ in range(6))], name)
    return found


def test_a_crash_at_any_byte_leaves_the_last_good_one(good: Path, tmp_path: Path) -> None:
    bounds = drawn(good)
    for bound in bounds:
        shutil.copytree(good, tmp_path / str(bound))
    command = [sys.executable, checkpoint_script.__file__, str(tmp_path), "3", *map(str, bounds)]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    ended = {int(bound): int(status) for bound, status in map(str.split, said.splitlines())}
    assert ended == dict.fromkeys(bounds, -signal.SIGXFSZ)
    for bound, name in bounds.items():
        directory = tmp_path / str(bound)
        partial = directory / "checkpoint-00000003.partial"
        there = {each.name for each in partial.iterdir()}
        before = set(FILES[: FILES.index(name)])
        assert before <= there, "it ended in this file, and in none before"
        assert not there & (set(FILES) - before - {name})
        found, faults = Checkpoints(directory).newest()
        assert found is not None
        assert (found.version, faults, partial.exists()) == (base_ref(2), [], False)
        checkpoint_script.write(directory, 3)
        again, faults = Checkpoints(directory).newest()
        assert again is not None
        assert (again.version, faults) == (base_ref(3), [])


def test_a_disk_that_lost_the_end_of_a_file_costs_that_checkpoint_alone(good: Path, tmp_path: Path) -> None:
    """The checkpoint was renamed into place, but the disk lost what it had confirmed."""
    for bound, name in drawn(good).items():
        directory = tmp_path / str(bound)
        shutil.copytree(good, directory)
        checkpoint_script.write(directory, 3)
        torn = directory / "checkpoint-00000003" / name
        torn.write_bytes(torn.read_bytes()[:bound])
        found, faults = Checkpoints(directory).newest()
        assert found is not None
        assert (found.version, [str(torn) in str(fault) for fault in faults]) == (base_ref(2), [True])
