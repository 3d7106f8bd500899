"""Published weights, and the blobs they lie in."""

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import msgspec

from core.ids import PolicyRef


class WeightsRef(msgspec.Struct, frozen=True, kw_only=True):
    """Weights in Blobs. `digest` covers names, dtypes, shapes and bytes (core.model.weights_digest)."""

    version: PolicyRef
    digest: str
    path: str  # blob path of the manifest
    parent: PolicyRef | None = None


class Weights(Protocol):
    """Published weights. Blocks: keep off the event loop."""

    def publish(self, version: PolicyRef, shards: Sequence[Path], parent: PolicyRef | None) -> WeightsRef:
        """Store safetensors shards as `version`, atomically: a reader sees all or nothing.

        Publishing the same content again returns the same reference; other content raises WeightsError."""
        ...

    def open(self, ref: WeightsRef) -> Sequence[Path]:
        """Local, verified safetensors shards. Raises WeightsError naming what is missing or corrupt."""
        ...

    def chain(self, ref: WeightsRef) -> Sequence[WeightsRef]:
        """Return what `open` reads when nothing is cached, from the anchor to `ref`."""
        ...

    def discard(self, version: PolicyRef) -> None: ...  # it opens no more; what others need of it stays while they do


class Blobs(Protocol):
    """Files by path under one root (fsspec: a directory, S3, GCS). Paths are relative, with slashes."""

    def put(self, path: str, data: bytes) -> None:
        """Atomic and durable when it returns."""
        ...

    def put_file(self, path: str, source: Path) -> None: ...

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
