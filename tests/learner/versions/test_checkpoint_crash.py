"""A crash at any byte of a checkpoint's or a journal entry's write leaves the last good one, and the next succeeds."""

import random
import shutil
import signal
from pathlib import Path

import pytest
from cut_off_writes import cut_off, write_checkpoint, write_entry

from core.errors import CheckpointError
from core.ids import PolicyRef, base_ref
from learner.versions.checkpoint import Checkpoints
from learner.versions.journal import Journal

FILES = ("__0_0.distcp", ".metadata", "memory.pt", "meta.msgpack")
ENTRY = "journal-00000003.msgpack.zst"


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a directory with a whole checkpoint and a journal entry of version 2."""
    directory = tmp_path_factory.mktemp("good")
    write_checkpoint(directory, 2)
    write_entry(directory, 2)
    return directory


def drawn(good: Path) -> dict[int, str]:
    """Return bounds, each with the file that it cuts off: the edges and random places within each file."""
    sizes = [(good / "checkpoint-00000002" / name).stat().st_size for name in FILES]
    assert sizes == sorted(sizes)
    found: dict[int, str] = {}
    for name, low, high in zip(FILES, [0, *sizes], sizes, strict=False):
        found |= dict.fromkeys(within(low, high, 2), name)
    return found


def of_an_entry(good: Path) -> set[int]:
    return set(within(0, (good / "journal-00000002.msgpack.zst").stat().st_size, 4))


def within(low: int, high: int, count: int) -> list[int]:
    chance = random.Random(high)
    return [low, high - 1, *(chance.randrange(low, high) for _ in range(count))]


@pytest.fixture(scope="module")
def crashed(good: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write version 3 for each bound, in a copy of the good directory, until the kernel ends the writer."""
    directory = tmp_path_factory.mktemp("crashed")
    bounds = [("checkpoint", bound) for bound in drawn(good)] + [("entry", bound) for bound in of_an_entry(good)]
    for what, bound in bounds:
        place = shutil.copytree(good, directory / f"{what}-{bound}")
        assert cut_off(what, place, 3, bound) == -signal.SIGXFSZ
    return directory


def newest_checkpoint(directory: Path) -> PolicyRef:
    found, faults = Checkpoints(directory).newest()
    assert found is not None
    assert not faults
    return found.version


def newest_entry(directory: Path) -> PolicyRef:
    found = next(Journal(directory).newest_first())
    assert not isinstance(found, CheckpointError)
    return found.version


def test_a_crash_at_any_byte_of_a_checkpoint_leaves_the_last_good_one(good: Path, crashed: Path) -> None:
    for bound, name in drawn(good).items():
        directory = crashed / f"checkpoint-{bound}"
        partial = directory / "checkpoint-00000003.partial"
        there = {each.name.removesuffix(".tmp").removesuffix(".partial") for each in partial.iterdir()}
        before = set(FILES[: FILES.index(name)])
        assert before <= there, "it ended in this file, and in none before"
        assert not there & (set(FILES) - before - {name})
        assert newest_checkpoint(directory) == base_ref(2)
        assert not partial.exists()
        write_checkpoint(directory, 3)
        assert newest_checkpoint(directory) == base_ref(3)


def test_a_crash_at_any_byte_of_an_entry_leaves_the_last_good_one(good: Path, crashed: Path) -> None:
    for bound in of_an_entry(good):
        directory = crashed / f"entry-{bound}"
        assert newest_entry(directory) == base_ref(2)
        assert not list(directory.glob("journal-*.partial"))
        write_entry(directory, 3)
        assert newest_entry(directory) == base_ref(3)


def test_a_disk_that_lost_the_end_of_a_file_costs_that_checkpoint_alone(good: Path, tmp_path: Path) -> None:
    """The checkpoint was renamed into place, but the disk lost what it had confirmed."""
    for bound, name in drawn(good).items():
        directory = tmp_path / str(bound)
        shutil.copytree(good, directory)
        write_checkpoint(directory, 3)
        torn = directory / "checkpoint-00000003" / name
        torn.write_bytes(torn.read_bytes()[:bound])
        found, faults = Checkpoints(directory).newest()
        assert found is not None
        assert (found.version, [str(torn) in str(fault) for fault in faults]) == (base_ref(2), [True])


def test_a_disk_that_lost_the_end_of_an_entry_costs_that_entry_alone(good: Path, tmp_path: Path) -> None:
    shutil.copytree(good, tmp_path / "torn")
    write_entry(tmp_path / "torn", 3)
    torn = tmp_path / "torn" / ENTRY
    torn.write_bytes(torn.read_bytes()[:-1])
    fault, found = list(Journal(tmp_path / "torn").newest_first())
    assert isinstance(fault, CheckpointError)
    assert str(torn) in str(fault)
    assert not isinstance(found, CheckpointError)
    assert found.version == base_ref(2)
