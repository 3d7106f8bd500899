"""Tensors in files that several processes write and read together, each its own shards (torch.distributed.checkpoint).

The files can be read by another number of processes than wrote them. torch keeps no digests of them, so these are
computed here, of the bytes as they are written."""

import os
import warnings
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, cast

import torch
from blake3 import blake3
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystem, FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import async_save

from core.errors import CheckpointError
from learner.model.ranks import Ranks

_TEMPORARY = ".tmp"  # torch writes its index aside
warnings.filterwarnings("ignore", "torch.distributed is (disabled|unavailable)")  # a process that is alone knows


class Saving:
    """Tensors that are being written in a thread: what they were when it began, whatever becomes of them.

    All processes make one at the same time."""

    def __init__(self, tensors: Mapping[str, Tensor], directory: Path, ranks: Ranks) -> None:
        self._directory = directory
        self._files = _DigestedFiles()
        writer = FileSystemWriter(directory)
        writer.fs = self._files
        self._future = cast(
            "Future[Any]",
            async_save(dict(tensors), storage_writer=writer, process_group=ranks.files, no_dist=ranks.count == 1),
        )

    @property
    def is_done(self) -> bool:
        return self._future.done()

    def digests(self) -> dict[str, str]:
        """Wait, and return the digests of the files that this process wrote. Raises CheckpointError."""
        try:
            self._future.result()
        except CheckpointException as error:
            raise CheckpointError(f"{self._directory}: not written: {_causes(error)}") from error
        return dict(self._files.digests)


def read_into(tensors: Mapping[str, Tensor], directory: Path, ranks: Ranks) -> None:
    """Read the tensors' values from files, in all processes at the same time. Raises CheckpointError."""
    reader, alone = FileSystemReader(directory), ranks.count == 1
    try:
        load(dict(tensors), storage_reader=reader, process_group=ranks.files, no_dist=alone)
    except CheckpointException as error:
        raise CheckpointError(f"{directory}: not read: {_causes(error)}") from error


def _causes(error: CheckpointException) -> str:
    return "; ".join(f"{type(cause).__name__}: {cause}" for cause, _ in error.failures.values())


class TensorOnDisk(NamedTuple):
    shape: torch.Size
    dtype: torch.dtype


def stored_tensors(directory: Path) -> dict[str, TensorOnDisk]:
    """Return what tensors are in the files, by name."""
    found = FileSystemReader(directory).read_metadata().state_dict_metadata
    return {
        name: TensorOnDisk(each.size, each.properties.dtype)
        for name, each in found.items()
        if isinstance(each, TensorStorageMetadata)
    }


class _DigestedFiles(FileSystem):
    def __init__(self) -> None:
        self.digests: dict[str, str] = {}

    @contextmanager
    def create_stream(self, path: str | os.PathLike[str], mode: str) -> Iterator[Any]:
        with super().create_stream(path, mode) as stream:
            digested = _Digested(cast(BinaryIO, stream))
            try:
                yield digested
            except (OSError, RuntimeError) as error:  # torch's own does not say why, and neither names the file
                raise OSError(f"{path}: {digested.failure or error}") from error
            self.digests[Path(path).name] = digested.hexdigest()

    def rename(self, path: str | os.PathLike[str], new_path: str | os.PathLike[str]) -> None:
        super().rename(path, new_path)
        self.digests[Path(new_path).name] = self.digests.pop(Path(path).name)


class _Digested:
    """A file that is written from its beginning to its end."""

    def __init__(self, file: BinaryIO) -> None:
        self._file, self._hasher = file, blake3()
        self.failure: OSError | None = None

    def write(self, data: Any) -> int:
        self._hasher.update(data)
        try:
            return self._file.write(data)
        except OSError as error:
            self.failure = error
            raise

    def hexdigest(self) -> str:
        return str(self._hasher.hexdigest())

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)  # tell, flush, fileno, close
