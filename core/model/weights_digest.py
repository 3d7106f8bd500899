"""The digest of a set of weights: BLAKE3 over every tensor's name, dtype, shape and raw bytes, in name order.

It is read from safetensors files (https://github.com/huggingface/safetensors: 8 bytes of header length, a JSON
header, then the tensors) without any tensor library, and does not depend on how tensors are spread over shards.
"""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from blake3 import blake3

from core.blobs import pieces_of
from core.errors import WeightsError

_LENGTH_BYTES = 8
_MAX_HEADER_BYTES = 100_000_000


def read_header(file: BinaryIO, path: Path) -> tuple[dict[str, Any], int]:
    """Return the tensors' entries and the offset of the first tensor byte. Raises WeightsError naming the file."""
    prefix = file.read(_LENGTH_BYTES)
    length = int.from_bytes(prefix, "little")
    if len(prefix) < _LENGTH_BYTES or length > _MAX_HEADER_BYTES:
        raise WeightsError(f"{path}: no safetensors header")
    try:
        header = json.loads(file.read(length))
    except ValueError as error:
        raise WeightsError(f"{path}: the safetensors header is corrupt ({error})") from error
    if not isinstance(header, dict):
        raise WeightsError(f"{path}: the safetensors header is no object")
    header.pop("__metadata__", None)
    for name, entry in header.items():
        if not _is_entry(entry):
            raise WeightsError(f"{path}: the safetensors header is corrupt (tensor {name})")
    return header, _LENGTH_BYTES + length


def _is_entry(entry: Any) -> bool:
    match entry:
        case {"dtype": str(), "shape": [*shape], "data_offsets": [int(start), int(end)]}:
            return 0 <= start <= end and all(isinstance(size, int) for size in shape)
    return False


@dataclass(frozen=True)
class StoredTensor:
    """The place of a tensor's bytes."""

    path: Path
    dtype: str  # as safetensors names it
    shape: tuple[int, ...]
    start: int  # in the file
    end: int

    def head(self, name: str) -> bytes:
        """Return what the digest covers before the tensor's bytes."""
        return f"{name}\0{self.dtype}\0{','.join(map(str, self.shape))}\0".encode()


def tensors_of(shards: Sequence[Path]) -> dict[str, StoredTensor]:
    """Return the tensors by name, in name order.

    Raises WeightsError naming the file that cannot be read, is truncated, or holds a tensor twice."""
    tensors: dict[str, StoredTensor] = {}
    for path in shards:
        try:
            with path.open("rb") as file:
                header, base = read_header(file, path)
                size = os.fstat(file.fileno()).st_size
        except OSError as error:
            raise WeightsError(f"{path}: cannot be read ({error.strerror})") from error
        for name, entry in header.items():
            if name in tensors:
                raise WeightsError(f"{path}: tensor {name} stands in two shards")
            start, end = entry["data_offsets"]
            if base + end > size:
                raise WeightsError(f"{path}: truncated, {base + end - size} bytes are missing")
            tensors[name] = StoredTensor(path, entry["dtype"], tuple(entry["shape"]), base + start, base + end)
    return dict(sorted(tensors.items()))


def bytes_of(tensors: Mapping[str, StoredTensor]) -> int:
    return sum(tensor.end - tensor.start for tensor in tensors.values())


def digest_of_shards(shards: Sequence[Path]) -> str:
    """Return the digest. Raises WeightsError naming a file that is missing, truncated or repeats a tensor."""
    hasher = blake3()
    for name, tensor in tensors_of(shards).items():
        hasher.update(tensor.head(name))
        _update(hasher, tensor)
    return str(hasher.hexdigest())


def _update(hasher: blake3, tensor: StoredTensor) -> None:
    left = tensor.end - tensor.start
    try:
        for piece in pieces_of(tensor.path, tensor.start, left):
            hasher.update(piece)
            left -= len(piece)
    except OSError as error:  # it may have gone since its header was read
        raise WeightsError(f"{tensor.path}: {error}") from error
    if left:
        raise WeightsError(f"{tensor.path}: truncated, {left} bytes are missing")


class PassingDigest:
    """The digest of shards whose bytes pass by once, on their way somewhere else.

    It comes about where tensors lie in name order, as safetensors writes those of one dtype into one file."""

    def __init__(self, shards: Sequence[Path]) -> None:
        """Read the headers. Raises WeightsError naming a file that is missing, truncated or repeats a tensor."""
        self._shards, self._hasher = shards, blake3()
        self._waiting = list(tensors_of(shards).items())[::-1]
        self._seen = 0  # bytes of the tensor that is next

    def see(self, path: Path, at: int, piece: memoryview) -> None:
        """Take the bytes of a file from `at` on; those of each file in order."""
        while self._waiting:
            name, tensor = self._waiting[-1]
            start = tensor.start + self._seen - at
            if tensor.start < tensor.end and (tensor.path != path or not 0 <= start < len(piece)):
                return
            if not self._seen:
                self._hasher.update(tensor.head(name))
            part = piece[start : tensor.end - at] if tensor.start < tensor.end else piece[:0]
            self._hasher.update(part)
            self._seen += len(part)
            if tensor.start + self._seen < tensor.end:
                return
            self._waiting.pop()
            self._seen = 0

    def finish(self) -> str:
        """Return the digest, after reading the files again where tensors lay in another order."""
        return digest_of_shards(self._shards) if self._waiting else str(self._hasher.hexdigest())


def checksum_of(path: Path) -> str:
    """BLAKE3 over a file's bytes."""
    hasher = blake3()
    for piece in pieces_of(path):
        hasher.update(piece)
    return str(hasher.hexdigest())
