"""The digest of a set of weights: BLAKE3 over every tensor's name, dtype, shape and raw bytes, in name order.

It is read from safetensors files (https://github.com/huggingface/safetensors: 8 bytes of header length, a JSON
header, then the tensors) without any tensor library, and does not depend on how tensors are spread over shards.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from blake3 import blake3

from core.errors import WeightsError

_LENGTH_BYTES = 8
_MAX_HEADER_BYTES = 100_000_000
_CHUNK_BYTES = 1 << 20


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


def _tensor_bytes(path: Path, start: int, end: int) -> Iterator[bytes]:
    try:
        with path.open("rb") as file:
            file.seek(start)
            remaining = end - start
            while remaining:
                chunk = file.read(min(_CHUNK_BYTES, remaining))
                if not chunk:
                    raise WeightsError(f"{path}: truncated, {remaining} bytes are missing")
                remaining -= len(chunk)
                yield chunk
    except OSError as error:  # it may have gone since its header was read
        raise WeightsError(f"{path}: {error}") from error


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

    Raises WeightsError naming the file that cannot be read or holds a tensor twice."""
    tensors: dict[str, StoredTensor] = {}
    for path in shards:
        try:
            with path.open("rb") as file:
                header, base = read_header(file, path)
        except OSError as error:
            raise WeightsError(f"{path}: cannot be read ({error.strerror})") from error
        for name, entry in header.items():
            if name in tensors:
                raise WeightsError(f"{path}: tensor {name} stands in two shards")
            start, end = entry["data_offsets"]
            tensors[name] = StoredTensor(path, entry["dtype"], tuple(entry["shape"]), base + start, base + end)
    return dict(sorted(tensors.items()))


def digest_of_shards(shards: Sequence[Path]) -> str:
    """Return the digest. Raises WeightsError naming a file that is missing, truncated or repeats a tensor."""
    hasher = blake3()
    for name, tensor in tensors_of(shards).items():
        hasher.update(tensor.head(name))
        for chunk in _tensor_bytes(tensor.path, tensor.start, tensor.end):
            hasher.update(chunk)
    return str(hasher.hexdigest())


def checksum_of(path: Path) -> str:
    """BLAKE3 over a file's bytes."""
    hasher = blake3()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            hasher.update(chunk)
    return str(hasher.hexdigest())
