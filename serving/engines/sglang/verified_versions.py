"""Versions verified on an engine's own host: complete model directories, ready to be loaded without any fetching.

    DIRECTORY/00000012/config.json, tokenizer.json, …    links to the model's
    DIRECTORY/00000012/model.safetensors                 the version's weights; an adapter's merged with the model's

SGLang loads what it is given: a missing tensor silently keeps its old value, and a wrong shape ends the server. So
nothing reaches it that was not verified here.

A merged version takes as many bytes as the model. Those of a host that ended are deleted when the next one starts.
"""

import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from core.errors import WeightsError
from core.ids import ANCHOR, PolicyRef
from core.model.files import check_model_files, check_weights, weight_files
from core.model.weights_digest import bytes_of, digest_of_shards, tensors_of
from core.ports import Opened, WeightsRef
from serving.engines.sglang.checksums import ExpectedChecksums, expected
from serving.weights.deltas.finite import check_finite
from serving.weights.merged import write_merged

_LOADABLE = frozenset({"F32", "BF16", "F16", "F8_E4M3", "F8_E5M2"})


@dataclass(frozen=True)
class VerifiedVersion:
    """A verified version. `expected`: what the engine must say of it once loaded; `size`: bytes of its tensors."""

    ref: WeightsRef
    directory: Path
    expected: ExpectedChecksums
    size: int


class VerifiedVersions:
    """One thread puts, any thread reads."""

    def __init__(self, directory: Path, model: Path, served_dtype: str, device: str) -> None:
        check_model_files(model)
        check_weights(model)
        directory.mkdir(parents=True, exist_ok=True)
        for left in directory.iterdir():
            shutil.rmtree(left)
        self._directory, self._model = directory, model
        self._served_dtype, self._device = served_dtype, device
        self._layout = {name: tensor.shape for name, tensor in tensors_of(_shards(model)).items()}
        self._held: dict[PolicyRef, VerifiedVersion] = {}

    @cached_property
    def base(self) -> Opened:
        """The given model, upon which adapters stand."""
        shards = _shards(self._model)
        return Opened(digest_of_shards(shards), shards)

    def held(self) -> dict[PolicyRef, VerifiedVersion]:
        return dict(self._held)

    def put(self, ref: WeightsRef, opened: Opened) -> VerifiedVersion:
        """Verify, lay out and keep.

        Raises WeightsError naming file and tensor that does not fit, and OSError where the disk has no room."""
        if opened.adapter is None:
            self._check(ref, opened.shards)
        elif opened.digest != ref.digest:
            raise WeightsError(f"{ref.path}: has digest {opened.digest}, version {ref.version} has {ref.digest}")
        target = self._directory / ref.version.padded
        self._held.pop(ref.version, None)
        shutil.rmtree(target, ignore_errors=True)
        target.mkdir()
        try:
            self._lay_out(opened, target)
            shards = _shards(target)
            wanted = expected(shards, self._served_dtype, self._device)
            self._held[ref.version] = held = VerifiedVersion(ref, target, wanted, bytes_of(tensors_of(shards)))
        finally:
            if ref.version not in self._held:
                shutil.rmtree(target, ignore_errors=True)  # half of one
        return held

    def _lay_out(self, opened: Opened, target: Path) -> None:
        for file in sorted(self._model.iterdir()):
            if file.is_file() and ".safetensors" not in file.name and file.suffix != ".py":  # no code of the model's
                (target / file.name).symlink_to(file.resolve())
        if opened.adapter is None:
            for place, shard in enumerate(opened.shards):
                name = "model.safetensors" if len(opened.shards) == 1 else f"model-{place:05d}.safetensors"
                _link(shard, target / name)
        else:
            check_finite(opened.shards)
            write_merged(self.base, opened, target, self._served_dtype)

    def put_base(self) -> VerifiedVersion:
        """Hold the given model as version 1, upon which adapters stand."""
        ref = WeightsRef(version=ANCHOR, digest=self.base.digest, path=str(self._model))
        return self.put(ref, self.base)

    def drop(self, version: PolicyRef) -> None:
        held = self._held.pop(version, None)
        if held is not None:
            shutil.rmtree(held.directory, ignore_errors=True)

    def _check(self, ref: WeightsRef, shards: Sequence[Path]) -> None:
        tensors = tensors_of(shards)
        for name in sorted(self._layout.keys() | tensors.keys()):
            if name not in tensors:
                raise WeightsError(f"{ref.path}: tensor {name} is missing")
            if name not in self._layout:
                raise WeightsError(f"{tensors[name].path}: tensor {name} is not one of the model's")
            if tensors[name].shape != self._layout[name]:
                shapes = f"{list(tensors[name].shape)}, not {list(self._layout[name])}"
                raise WeightsError(f"{tensors[name].path}: {name} is of shape {shapes}")
            if tensors[name].dtype not in _LOADABLE:
                raise WeightsError(f"{tensors[name].path}: {name} is of dtype {tensors[name].dtype}, not loadable")
        check_finite(shards)
        digest = digest_of_shards(shards)
        if digest != ref.digest:
            raise WeightsError(f"{ref.path}: the tensors' digest is {digest}, version {ref.version} has {ref.digest}")


def _shards(directory: Path) -> list[Path]:
    found = weight_files(directory)
    if not found:
        raise WeightsError(f"{directory}: no *.safetensors file")
    return found


def _link(source: Path, target: Path) -> None:
    """Link a file if the file system can, so that it stays when the cache evicts its own."""
    try:
        os.link(source.resolve(), target)
    except OSError:
        shutil.copyfile(source, target)
