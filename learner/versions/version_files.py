"""The files of a version that is about to be published: what engines load, and nothing that the learner alone needs.

Where adapters train upon the given model, these are A and B, in the float32 that trains; else the whole weights."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from safetensors.torch import save_file

from core.model.adapters import digest_of_version
from core.ports import AdapterConfig
from learner.updates.state import LearnerState

_DIRECTORY = "publishing"


class VersionFiles(NamedTuple):
    shards: tuple[Path, ...]
    adapter: AdapterConfig | None = None


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
    policy, adapter = state.policy, state.adapter
    tensors = policy.tensors() if adapter is None else policy.adapter_tensors()
    path = directory / ("model.safetensors" if adapter is None else "adapter.safetensors")
    if state.ranks.leads:
        save_file(tensors, path, metadata={"format": "pt"})
    return VersionFiles((path,), adapter)


def digest_of(files: VersionFiles) -> str:
    """Return the digest that the files are published with."""
    return digest_of_version(files.shards, files.adapter)
