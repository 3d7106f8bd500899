"""Merging an adapter with its base, file by file: W + (alpha / rank) B A in float32, rounded once.

For engines that load whole weights alone. Without any tensor library, since the host of an engine has none."""

import errno
import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from core.errors import WeightsError
from core.model.adapters import LowRank, check_base, check_fits, low_rank_of
from core.model.weights_digest import StoredTensor, tensors_of
from core.ports import Opened

Floats = NDArray[np.float32]
_DTYPES = {"float32": "F32", "bfloat16": "BF16", "float16": "F16"}
_BYTES = {"F32": 4, "BF16": 2, "F16": 2}
_ALIGNED = 8  # a header's bytes


def write_merged(base: Opened, opened: Opened, directory: Path, dtype: str) -> list[Path]:
    """Write whole weights to `directory`, under the names of the base's files.

    What the adapter changes is in `dtype`, as torch names it; all else is copied. Raises WeightsError when the adapter
    is upon another base, does not fit it, or when a sum is not finite, and OSError, before it writes anything, when the
    disk has no room for them."""
    assert opened.adapter is not None
    check_base(opened.adapter, base.digest, f"{opened.shards[0].parent}")
    changes, tensors = low_rank_of(opened.shards, opened.adapter), tensors_of(base.shards)
    check_fits(changes, {name: tensor.shape for name, tensor in tensors.items()})
    stored = _DTYPES[dtype]
    _require_room(directory, sum(_size(name, tensor, changes, stored) for name, tensor in tensors.items()))
    made = []
    for shard in base.shards:
        within = {name: tensor for name, tensor in tensors.items() if tensor.path == shard}
        made.append(directory / shard.name)
        _write(made[-1], within, changes, opened.adapter.scale, stored)
    return made


def _size(name: str, tensor: StoredTensor, changes: Mapping[str, LowRank], dtype: str) -> int:
    """Return the bytes that a tensor has once it is merged."""
    return _BYTES[dtype] * int(np.prod(tensor.shape)) if name in changes else tensor.end - tensor.start


def _require_room(directory: Path, size: int) -> None:
    existing = directory if directory.exists() else directory.parent
    free = shutil.disk_usage(existing).free
    if free < size:
        what = f"a merged version takes {size:,} bytes, and {free:,} are free"
        raise OSError(errno.ENOSPC, what, str(directory))


def _write(
    path: Path, tensors: Mapping[str, StoredTensor], changes: Mapping[str, LowRank], scale: float, dtype: str
) -> None:
    """Write one safetensors file, a tensor at a time."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, tensor in tensors.items():
        size = _size(name, tensor, changes, dtype)
        kept = {"dtype": dtype if name in changes else tensor.dtype, "shape": list(tensor.shape)}
        header[name] = kept | {"data_offsets": [end, end + size]}
        end += size
    told = json.dumps(header, separators=(",", ":")).encode()
    told += b" " * (-len(told) % _ALIGNED)
    with path.open("xb") as file:
        file.write(len(told).to_bytes(8, "little") + told)
        for name, tensor in tensors.items():
            if name in changes:
                file.write(_merged(path, name, tensor, changes[name], scale, dtype))
            else:
                file.write(_raw(tensor).data)


def _merged(path: Path, name: str, tensor: StoredTensor, low_rank: LowRank, scale: float, dtype: str) -> memoryview:
    with np.errstate(over="ignore", invalid="ignore"):  # what is not finite is said below
        sum_OI = _floats(low_rank.b) @ _floats(low_rank.a)
        sum_OI *= np.float32(scale)
        sum_OI += _floats(tensor)
        rounded, is_finite = _rounded(sum_OI, dtype)
    if not is_finite:
        raise WeightsError(f"{path}: tensor {name} is not finite with its adapter")
    return np.ascontiguousarray(rounded).view(np.uint8).data


def _raw(tensor: StoredTensor) -> NDArray[np.uint8]:
    size = tensor.end - tensor.start
    if not size:
        return np.empty(0, np.uint8)
    try:
        return np.memmap(tensor.path, dtype=np.uint8, mode="r", offset=tensor.start, shape=(size,))
    except (OSError, ValueError) as error:
        raise WeightsError(f"{tensor.path}: cannot be read ({error})") from error


def _floats(tensor: StoredTensor) -> Floats:
    """Return a tensor's values. Raises WeightsError for a dtype that no adapter is added to."""
    raw = _raw(tensor)
    match tensor.dtype:
        case "F32":
            values = raw.view(np.float32)
        case "F16":
            values = raw.view(np.float16).astype(np.float32)
        case "BF16":
            values = (raw.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
        case other:
            raise WeightsError(f"{tensor.path}: weights of dtype {other} take no adapter")
    return values.reshape(tensor.shape)


def _rounded(values: Floats, dtype: str) -> tuple[NDArray[Any], bool]:
    """Return values rounded to the nearest, and to even between two, and whether they are finite then."""
    match dtype:
        case "BF16":
            bits = np.ascontiguousarray(values).view(np.uint32)
            half = np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
            rounded = ((bits + half) >> np.uint32(16)).astype(np.uint16)
            is_finite = np.isfinite(values).all() and (rounded & np.uint16(0x7F80) != np.uint16(0x7F80)).all()
            return rounded, bool(is_finite)
        case "F16":
            values_F16 = values.astype(np.float16)
            return values_F16, bool(np.isfinite(values_F16).all())
    return values, bool(np.isfinite(values).all())
