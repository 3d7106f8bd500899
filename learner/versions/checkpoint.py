"""Checkpoints: one directory a version, written beside and renamed into place.

A crash at any byte leaves the last good one.

    checkpoint-00000012/
        model.safetensors   the policy's weights, as published
        state.pt            optimizer, baseline, influence, random state
        memory.pt           the last three again, as they are published: they outlive the checkpoint
        meta.msgpack        version, parent, lineage, offsets, backlog, what is to be published, digests of the others;
                            behind its own digest"""

import os
import pickle
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import torch
from blake3 import blake3
from safetensors.torch import save_file
from torch import Tensor

from core import codec
from core.errors import CheckpointError
from core.events import PolicyVersion, Reward
from core.ids import InferenceId, PolicyRef
from learner.sequences.scored import Applied
from learner.updates.state import LearnerState

FORMAT = 1
_PREFIX = "checkpoint-"
_DIGEST_BYTES = 32
_WEIGHTS, _STATE, _META, _MANIFEST = "model.safetensors", "state.pt", "meta.msgpack", "manifest.msgpack.zst"
_MEMORY = "memory.pt"


class Meta(msgspec.Struct, frozen=True, kw_only=True):
    """The description of a checkpoint.

    `lineage` runs from the first version to this one; `live`, `refused` and `released` are what was known of releases
    up to `offsets`; `anchor` is the version that the KL term holds to, None for the given model. `policy` still lacks
    digest and the weights' path."""

    format: int = FORMAT
    policy: PolicyVersion
    lineage: tuple[PolicyRef, ...]
    live: PolicyRef | None
    refused: tuple[PolicyRef, ...]
    released: tuple[PolicyRef, ...] = ()
    anchor: PolicyRef | None = None
    offsets: dict[str, int]
    pending: tuple[Reward, ...]
    applied: dict[InferenceId, Applied]
    digests: dict[str, str] = {}


class Checkpoint(msgspec.Struct, frozen=True):
    directory: Path
    meta: Meta

    @property
    def version(self) -> PolicyRef:
        return self.meta.policy.version

    @property
    def weights(self) -> Path:
        return self.directory / _WEIGHTS

    @property
    def manifest(self) -> bytes:
        return (self.directory / _MANIFEST).read_bytes()

    @property
    def memory(self) -> bytes | None:
        """The baseline, influence and random state as published; None in a checkpoint of a build that wrote none."""
        path = self.directory / _MEMORY
        return path.read_bytes() if path.exists() else None


class Contents(NamedTuple):
    """The parts of a state that a checkpoint keeps; of sharded tensors, only the leader's are whole."""

    weights: dict[str, Tensor]
    state: dict[str, Any]
    memory: dict[str, Any]


def contents(state: LearnerState) -> Contents:
    return Contents(state.policy.tensors(), state.state_dict(), state.memory())


def restore(state: LearnerState, checkpoint: Checkpoint) -> None:
    """Load a checkpoint into the state. Raises WeightsError or CheckpointError, naming the file."""
    try:
        state.load_state_dict(torch.load(checkpoint.directory / _STATE, weights_only=True))
    except (RuntimeError, pickle.UnpicklingError, KeyError, ValueError) as error:
        raise CheckpointError(f"{checkpoint.directory / _STATE}: {error}") from error
    if not state.lora_rank:
        state.policy.load([checkpoint.weights])


class Checkpoints:
    """The checkpoints of one learner."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        directory.mkdir(parents=True, exist_ok=True)
        for leftover in directory.glob("*.partial"):
            shutil.rmtree(leftover)

    def write(self, contents: Contents, meta: Meta, manifest: bytes) -> Checkpoint:
        """Write a checkpoint; it is durable when this returns."""
        final = self._path(meta.policy.version)
        partial = final.with_suffix(".partial")
        partial.mkdir()
        save_file(contents.weights, partial / _WEIGHTS, metadata={"format": "pt"})
        torch.save(contents.state, partial / _STATE)
        torch.save(contents.memory, partial / _MEMORY)
        (partial / _MANIFEST).write_bytes(manifest)
        digests = {name: _digest(partial / name) for name in (_WEIGHTS, _STATE, _MEMORY, _MANIFEST)}
        meta = msgspec.structs.replace(meta, digests=digests)
        data = msgspec.msgpack.encode(meta, enc_hook=codec.plain)
        (partial / _META).write_bytes(blake3(data).digest() + data)
        for path in [*partial.iterdir(), partial]:
            _sync(path)
        partial.rename(final)
        _sync(self._directory)
        return Checkpoint(final, meta)

    def newest(self) -> tuple[Checkpoint | None, list[CheckpointError]]:
        """Return the newest whole checkpoint, and what is wrong with newer ones."""
        faults: list[CheckpointError] = []
        for path in sorted(self._directory.glob(f"{_PREFIX}*[0-9]"), reverse=True):
            try:
                return self._read(path), faults
            except CheckpointError as error:
                faults.append(error)
        return None, faults

    def of(self, version: PolicyRef) -> Checkpoint | None:
        """Return a version's checkpoint; None when it was deleted. Raises CheckpointError when it is corrupt."""
        path = self._path(version)
        return self._read(path) if path.exists() else None

    def prune(self, keep: int, always: frozenset[PolicyRef]) -> None:
        kept = {self._path(version).name for version in always}
        paths = sorted(self._directory.glob(f"{_PREFIX}*[0-9]"), reverse=True)
        for path in paths[keep:]:
            if path.name not in kept:
                shutil.rmtree(path)

    def discard(self, checkpoint: Checkpoint) -> None:
        shutil.rmtree(checkpoint.directory)

    def _path(self, version: PolicyRef) -> Path:
        return self._directory / f"{_PREFIX}{version.padded}"

    def _read(self, path: Path) -> Checkpoint:
        """Read a checkpoint. Raises CheckpointError naming the file."""
        try:
            content = (path / _META).read_bytes()
            digest, data = content[:_DIGEST_BYTES], content[_DIGEST_BYTES:]
            if blake3(data).digest() != digest:
                raise CheckpointError(f"{path / _META}: corrupt (its digest is not the recorded one)")
            meta = msgspec.msgpack.decode(data, type=Meta, dec_hook=codec.typed)
        except (OSError, msgspec.DecodeError) as error:
            raise CheckpointError(f"{path / _META}: {error}") from error
        if meta.format != FORMAT:
            raise CheckpointError(f"{path / _META}: format {meta.format}, this build reads {FORMAT}")
        _verify(path, meta.digests)
        return Checkpoint(path, meta)


def _verify(path: Path, digests: Mapping[str, str]) -> None:
    for name, digest in digests.items():
        try:
            found = _digest(path / name)
        except OSError as error:
            raise CheckpointError(f"{path / name}: {error.strerror}") from error
        if found != digest:
            raise CheckpointError(f"{path / name}: corrupt (its digest is not the recorded one)")


def _digest(path: Path) -> str:
    return str(blake3(path.read_bytes()).hexdigest())


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
