"""Versions published one after another, and the bytes of each."""

import filecmp
import shutil
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from safetensors.torch import save_file

from bench.deltas.delta_peers import Snapshot, gaps_bytes, whole_bytes
from bench.deltas.delta_training import Weights
from core.blobs import FsspecBlobs
from core.ids import base_ref
from serving.weights.deltas.delta import DeltaStep, apply, encode
from serving.weights.published import BlobWeights

ANCHOR_EVERY = 25
DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}
_BITS = {"bf16": (torch.int16, np.uint16), "fp32": (torch.int32, np.uint32)}


@dataclass(frozen=True)
class Cost:
    """The bytes of one version; `changed` is a share of the elements."""

    changed: float
    full: int
    zstd: int
    gaps: int
    payload: int  # of the delta, whether it was published or not
    published: int  # all that lies in the blobs for the version
    is_delta: bool

    @property
    def weight(self) -> int:
        """The bytes that must never be more than `full`; a full version's manifest does not count."""
        return self.published if self.is_delta else self.full


class Line:
    """A line of versions, each of which another host opens and compares bit for bit.

    The files of the last two are kept."""

    def __init__(self, directory: Path, dtype: str) -> None:
        self._directory, self._dtype = directory, dtype
        directory.mkdir(parents=True)
        self._blobs = FsspecBlobs(directory / "blobs")
        self._publisher, self._reader = (
            BlobWeights(self._blobs, directory / host, ANCHOR_EVERY, cached_versions=2) for host in ("one", "other")
        )
        self._snapshot: Snapshot = {}
        self.files: list[Path] = []
        self.anchor = 0  # bytes of the first version
        self.costs: list[Cost] = []  # of the others

    def add(self, weights: Weights) -> None:
        number = len(self.costs) + 1 + bool(self.files)
        tensors = {name: tensor.detach().to(DTYPES[self._dtype], copy=True) for name, tensor in weights.items()}
        self.files.append(self._directory / str(number) / "model.safetensors")
        self.files[-1].parent.mkdir()
        save_file(tensors, self.files[-1], metadata={"format": "pt"})
        ref = self._publisher.publish(base_ref(number), self.files[-1:], base_ref(number - 1) if self.anchor else None)
        assert _same(self._reader.open(ref).shards[0], self.files[-1]), f"version {number} is not what was published"
        parent, self._snapshot = self._snapshot, {name: self._bits(tensor) for name, tensor in tensors.items()}
        paths = self._blobs.list(f"weights/{number:08d}/")
        published = sum(self._blobs.local(path).stat().st_size for path in paths)
        if self.anchor:
            self.costs.append(self._cost(parent, published, any("/delta-" in path for path in paths)))
        self.anchor = self.anchor or published
        for old in self.files[:-2]:
            old.unlink()
        self.files = self.files[-2:]

    def close(self) -> None:
        shutil.rmtree(self._directory)

    def _bits(self, tensor: torch.Tensor) -> np.ndarray:
        signed, unsigned = _BITS[self._dtype]
        return tensor.view(signed).numpy().view(unsigned).reshape(-1)

    def _cost(self, parent: Snapshot, published: int, is_delta: bool) -> Cost:
        child = self._snapshot
        changed = sum(np.count_nonzero(parent[name] != child[name]) for name in child)
        return Cost(
            changed=changed / sum(bits.size for bits in child.values()),
            full=self.files[-1].stat().st_size,
            zstd=whole_bytes(child),
            gaps=gaps_bytes(parent, child),
            payload=self._payload(*self.files[-2:]),
            published=published,
            is_delta=is_delta,
        )

    def _payload(self, parent: Path, child: Path) -> int:
        """Return the delta's bytes, after encoding and applying it, also where the version was published whole."""
        with TemporaryDirectory(dir=self._directory) as directory:
            delta, built = Path(directory) / "delta", Path(directory) / "built"
            encoded = encode([parent], [child], delta)
            built.mkdir()
            apply([parent], [DeltaStep(delta, encoded.tensors, "delta")], built)
            assert _same(built / parent.name, child), f"{child} is not what was encoded"
        return encoded.file.bytes


def _same(one: Path, other: Path) -> bool:
    return filecmp.cmp(one, other, shallow=False)
