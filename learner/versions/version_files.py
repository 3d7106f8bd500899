"""The files of a version that is about to be published: what engines load, and nothing that the learner alone needs.

Where adapters train upon the given model, these are A and B, in the float32 that trains; else the whole weights, in
what the engines compute in."""

import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from core.errors import WeightsError
from core.model.adapters import digest_of_version
from core.ports import AdapterConfig
from learner.updates.state import LearnerState

_DIRECTORY = "publishing"


class WrittenFiles(NamedTuple):
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


def write_files(state: LearnerState, directory: Path, dtype: str | None) -> WrittenFiles:
    """Write the files of the state's version; `dtype` is what whole weights are narrowed to.

    All processes call it, and the leader writes. Raises WeightsError naming a file that cannot be written."""
    policy, adapter = state.policy, state.adapter
    tensors = narrowed(policy.tensors(), dtype) if adapter is None else policy.adapter_tensors()
    path = directory / ("model.safetensors" if adapter is None else "adapter.safetensors")
    if state.ranks.leads:
        try:
            save_file(tensors, path, metadata={"format": "pt"})
        except (SafetensorError, OSError) as error:
            raise WeightsError(f"{path}: {error}") from error
    return WrittenFiles((path,), adapter)


def narrowed(tensors: Mapping[str, Tensor], dtype: str | None) -> dict[str, Tensor]:
    """Return floating tensors in `dtype` where that is narrower, rounded once, and the others as they are."""
    if dtype is None:
        return dict(tensors)
    target: torch.dtype = getattr(torch, dtype)

    def narrow(tensor: Tensor) -> Tensor:
        return tensor.to(target) if tensor.is_floating_point() and tensor.itemsize > target.itemsize else tensor

    return {name: narrow(tensor) for name, tensor in tensors.items()}


def digest_of(files: WrittenFiles) -> str:
    """Return the digest that the files are published with."""
    return digest_of_version(files.shards, files.adapter)
