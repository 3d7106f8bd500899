"""Checkpoints: the learner's weights and optimizer as of a version, in one directory, written aside and renamed.

They are written beside the training, every so often; what came after the newest one is learned again from the records
and manifests of the versions since (learner.reliving). A crash at any byte leaves the last good one.

    checkpoint-00000012/
        __0_0.distcp        the shards of the first process: what trains, and the optimizer's moments
        .metadata           torch's index of these
        memory.pt           baseline, influence, random state, and the optimizer's settings
        meta.msgpack        version, lineage, what was applied, digests of the others; behind its own digest

Of adapters, only these are kept: the weights they stand beside are the given model's or those of a published version.
"""

import pickle
import shutil
from collections.abc import Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import Final

import msgspec
import torch

from core import codec
from core.errors import CheckpointError
from core.ids import InferenceId, PolicyRef
from core.model.weights_digest import checksum_of
from learner.sequences.scored import Applied
from learner.updates.kept import begin_saving, finish_saving, load, small_part
from learner.updates.state import LearnerState
from learner.versions.durable import PARTIAL, read_sealed, sync, write_sealed

FORMAT: Final = 2
_PREFIX = "checkpoint-"
_MEMORY, _META = "memory.pt", "meta.msgpack"


class Meta(msgspec.Struct, frozen=True, kw_only=True):
    """The description of a checkpoint.

    `lineage` runs from the first version to this one; `anchor` is the version that the KL term holds to, and `base` the
    one whose published weights the adapters stand beside, None for the given model."""

    format: int = FORMAT
    version: PolicyRef
    lineage: tuple[PolicyRef, ...]
    anchor: PolicyRef | None = None
    base: PolicyRef | None = None
    applied: dict[InferenceId, Applied]
    digests: dict[str, str] = {}


class Checkpoint(msgspec.Struct, frozen=True):
    directory: Path
    meta: Meta

    @property
    def version(self) -> PolicyRef:
        return self.meta.version


# ---------------------------------------------------------------------------------------------- steps of all processes


def begin(state: LearnerState, directory: Path) -> bytes:
    """Begin to write the state's tensors, as they are now; return what else there is of it."""
    begin_saving(state, directory)
    small = BytesIO()
    torch.save(small_part(state), small)
    return small.getvalue()


def finish(state: LearnerState) -> dict[str, str]:
    """Wait until all tensors are written; return the files' digests. Raises CheckpointError."""
    return finish_saving(state)


def restore(state: LearnerState, checkpoint: Checkpoint, base: Sequence[Path]) -> None:
    """Load a checkpoint; `base` are the shards that its adapters stand beside, none for the given model's.

    Raises WeightsError or CheckpointError, naming the file."""
    path = checkpoint.directory / _MEMORY
    try:
        load(state, torch.load(BytesIO(read_sealed(path)), weights_only=True), checkpoint.directory, base)
    except (RuntimeError, pickle.UnpicklingError, KeyError, ValueError) as error:
        raise CheckpointError(f"{path}: {error}") from error


# ---------------------------------------------------------------------------------------------- the leader's directory


class Checkpoints:
    """The checkpoints of one learner."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        directory.mkdir(parents=True, exist_ok=True)
        for leftover in directory.glob(f"{_PREFIX}*{PARTIAL}"):
            shutil.rmtree(leftover)

    def room_for(self, version: PolicyRef) -> Path:
        """Make the directory that a checkpoint is written in."""
        partial = self._partial(version)
        partial.mkdir()
        return partial

    def keep(self, meta: Meta, memory: bytes, digests: Mapping[str, str]) -> Checkpoint:
        """Complete a checkpoint whose tensors are written; it is durable when this returns. Raises OSError."""
        partial, final = self._partial(meta.version), self._path(meta.version)
        write_sealed(partial / _MEMORY, memory)
        digests = {**digests, _MEMORY: checksum_of(partial / _MEMORY)}
        meta = msgspec.structs.replace(meta, digests=digests)
        write_sealed(partial / _META, msgspec.msgpack.encode(meta, enc_hook=codec.plain))
        partial.rename(final)
        sync(self._directory)
        return Checkpoint(final, meta)

    def give_up(self, version: PolicyRef) -> None:
        """Delete what was written of a checkpoint that could not be completed."""
        shutil.rmtree(self._partial(version), ignore_errors=True)

    def versions(self) -> list[PolicyRef]:
        """Return the versions that have a checkpoint, whole or not, the oldest first."""
        names = sorted(path.name.removeprefix(_PREFIX) for path in self._directory.glob(f"{_PREFIX}*[0-9]"))
        return [PolicyRef.parse_padded(name) for name in names]

    def of(self, version: PolicyRef) -> Checkpoint | None:
        """Return a version's checkpoint; None when there is none. Raises CheckpointError when it is corrupt."""
        path = self._path(version)
        return self._read(path) if path.exists() else None

    def newest(self) -> tuple[Checkpoint | None, list[CheckpointError]]:
        """Return the newest whole checkpoint, and what is wrong with newer ones."""
        faults: list[CheckpointError] = []
        for version in reversed(self.versions()):
            try:
                return self.of(version), faults
            except CheckpointError as error:
                faults.append(error)
        return None, faults

    def disk_bytes(self) -> int:
        """Return what the directory takes of the disk, but for what a thread is writing."""
        found = (path for path in self._directory.iterdir() if path.suffix != PARTIAL)
        files = (file for path in found for file in (path.iterdir() if path.is_dir() else [path]))
        return sum(file.stat().st_size for file in files)

    def size(self, version: PolicyRef) -> int:
        """Return the bytes of a version's checkpoint."""
        return sum(file.stat().st_size for file in self._path(version).iterdir())

    def delete(self, version: PolicyRef) -> None:
        shutil.rmtree(self._path(version))

    def _partial(self, version: PolicyRef) -> Path:
        return self._directory / f"{_PREFIX}{version.padded}{PARTIAL}"

    def _path(self, version: PolicyRef) -> Path:
        return self._directory / f"{_PREFIX}{version.padded}"

    def _read(self, path: Path) -> Checkpoint:
        """Read a checkpoint. Raises CheckpointError naming the file."""
        try:
            meta = msgspec.msgpack.decode(read_sealed(path / _META), type=Meta, dec_hook=codec.typed)
        except msgspec.DecodeError as error:
            raise CheckpointError(f"{path / _META}: {error}") from error
        if meta.format != FORMAT:
            raise CheckpointError(f"{path / _META}: format {meta.format}, this build reads {FORMAT}")
        for name, digest in meta.digests.items():
            _verify(path / name, digest)
        return Checkpoint(path, meta)


def _verify(path: Path, digest: str) -> None:
    try:
        found = checksum_of(path)
    except OSError as error:
        raise CheckpointError(f"{path}: {error.strerror}") from error
    if found != digest:
        raise CheckpointError(f"{path}: corrupt (its digest is not the recorded one)")
