"""Published weights, and the blobs they lie in."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Protocol

import msgspec

from core.ids import PolicyRef


class AdapterConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The description of an adapter: what it stands upon, and how it is added.

    Where an adapter has matrices A and B for a weight W, the version's weight is W + (alpha / rank) B A."""

    base_digest: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]
    rank: Annotated[int, msgspec.Meta(ge=1)]
    alpha: Annotated[float, msgspec.Meta(gt=0)]

    @property
    def scale(self) -> float:
        return self.alpha / self.rank


@dataclass(frozen=True)
class Opened:
    """A version's verified files on this host: whole weights, or an adapter upon a base that the host has."""

    digest: str  # the version's
    shards: Sequence[Path]
    adapter: AdapterConfig | None = None


class WeightsRef(msgspec.Struct, frozen=True, kw_only=True):
    """Weights in Blobs. `digest` is that of core.model.adapters.digest_of_version."""

    version: PolicyRef
    digest: str
    path: str  # blob path of the manifest
    parent: PolicyRef | None = None
    size: int = 0  # bytes that it takes of the blobs; 0: not known


class Weights(Protocol):
    """Published weights. Blocks: keep off the event loop."""

    def publish(
        self,
        version: PolicyRef,
        shards: Sequence[Path],
        parent: PolicyRef | None,
        adapter: AdapterConfig | None = None,
    ) -> WeightsRef:
        """Store safetensors shards as `version`, atomically: a reader sees all or nothing.

        With `adapter` the shards are LoRA's matrices, else whole weights. Publishing the same content again returns the
        same reference; other content, and an adapter that is none, raise WeightsError."""
        ...

    def open(self, ref: WeightsRef) -> Opened:
        """Return a version's local, verified files, which may be kept ones where the blobs are out of reach.

        Raises WeightsError naming what is missing or corrupt, OSError for what is out of reach."""
        ...

    def keep(self, ref: WeightsRef, shards: Sequence[Path]) -> None:
        """Keep on this host, where weights are cached, the files of a whole version that are here already."""
        ...

    def chain(self, ref: WeightsRef) -> Sequence[WeightsRef]:
        """Return what `open` reads when nothing is cached, from the anchor to `ref`."""
        ...

    def bases(self) -> Mapping[PolicyRef, PolicyRef | None]:
        """Return all versions that open, each with the one that it is a delta upon."""
        ...

    def discard(self, version: PolicyRef) -> None: ...  # it opens no more; what others need of it stays while they do


class Blobs(Protocol):
    """Files by path under one root (fsspec: a directory, S3, GCS). Paths are relative, with slashes."""

    def put(self, path: str, data: bytes) -> None:
        """Atomic and durable when it returns."""
        ...

    def put_file(self, path: str, source: Path, see: Callable[[memoryview], None] | None = None) -> None:
        """Put a file; `see` sees its bytes pass, piece by piece, and keeps none."""
        ...

    def get(self, path: str) -> bytes:
        """Return a blob's content. Raises FileNotFoundError."""
        ...

    is_local: bool  # whether `local` is the blob itself

    def local(self, path: str, target: Path | None = None) -> Path:
        """Return the blob as a local file, fetched when it is remote: to `target`, a new file, when it is given."""
        ...

    def exists(self, path: str) -> bool: ...

    def list(self, prefix: str) -> list[str]: ...

    def delete(self, path: str) -> None: ...
