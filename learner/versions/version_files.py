"""The files of a version that is about to be published: what engines load, and nothing that the learner alone needs."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from safetensors.torch import save_file

from learner.updates.state import LearnerState

_DIRECTORY = "publishing"


class VersionFiles(NamedTuple):
    shards: tuple[Path, ...]


@contextmanager
def room_for_files(directory: Path) -> Iterator[Path]:
    """Make an empty directory in the learner's own for a version's files, and delete it afterwards."""
    room = directory / _DIRECTORY
    shutil.rmtree(room, ignore_errors=True)  # of a learner that was cut off
    room.mkdir(parents=True)
    try:
        yield room
    finally:
        shutil.rmtree(room)


def write_files(state: LearnerState, directory: Path) -> VersionFiles:
    """Write the files of the state's version. All processes call it, and the leader writes."""
    path, tensors = directory / "model.safetensors", state.policy.tensors()
    if state.ranks.leads:
        save_file(tensors, path, metadata={"format": "pt"})
    return VersionFiles((path,))
