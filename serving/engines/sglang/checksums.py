"""The checksums that SGLang's weights checker reports, computed from the files.

On a CPU the checksum of a tensor is the first 8 bytes of SHA-256 over its bytes (sglang 0.5.23,
srt/managers/mm_utils.py: tensor_hash), so that *loaded* weights are verified before the first token is sampled from
them. The engine fuses projections; the fused names are those of its Qwen and Llama families."""

import hashlib
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from core.model.weights_digest import StoredTensor, tensors_of

_FUSED = {"qkv_proj": ("q_proj", "k_proj", "v_proj"), "gate_up_proj": ("gate_proj", "up_proj")}
_PART = re.compile(r"\.(q_proj|k_proj|v_proj|gate_proj|up_proj)\.(weight|bias)$")
_SERVED = {"float32": "F32", "bfloat16": "BF16", "float16": "F16"}


def expected(shards: Sequence[Path], served_dtype: str) -> dict[str, str]:
    """Return checksums, by the engine's names, of tensors whose loaded bytes follow from the file alone.

    Their dtype is the served one, or widens to it without rounding, and their name is the engine's own or one of the
    known fusions."""
    tensors = tensors_of(shards)
    found: dict[str, str] = {}
    for name in tensors:
        part = _PART.search(name)
        if part is None:
            found |= _checksum(tensors, name, [name], served_dtype)
            continue
        fused = next(whole for whole, parts in _FUSED.items() if part[1] in parts)
        if part[1] == _FUSED[fused][0]:
            parts = [f"{name[: part.start()]}.{other}.{part[2]}" for other in _FUSED[fused]]
            found |= _checksum(tensors, f"{name[: part.start()]}.{fused}.{part[2]}", parts, served_dtype)
    return found


def disagreement(loaded: Mapping[str, str], wanted: Mapping[str, str]) -> str | None:
    """Return the first tensor that differs; None when all that can be compared agree."""
    for name in sorted(wanted.keys() & loaded.keys()):
        if loaded[name] != wanted[name]:
            return name
    return None


def covers(loaded: Mapping[str, str], wanted: Mapping[str, str]) -> bool:
    """Return whether every loaded tensor was compared: then no probe is needed."""
    return bool(loaded) and loaded.keys() <= wanted.keys()


def _checksum(
    tensors: Mapping[str, StoredTensor], name: str, parts: Sequence[str], served_dtype: str
) -> dict[str, str]:
    if not all(part in tensors for part in parts):
        return {}
    hasher = hashlib.sha256()
    for part in parts:
        data = _as_served(_raw(tensors[part]), tensors[part].dtype, _SERVED.get(served_dtype, ""))
        if data is None:
            return {}
        hasher.update(data)
    return {name: hasher.digest()[:8].hex()}


def _raw(tensor: StoredTensor) -> NDArray[np.uint8]:
    """Map a tensor's bytes; they are read when hashed."""
    size = tensor.end - tensor.start
    if not size:
        return np.empty(0, np.uint8)
    return np.memmap(tensor.path, dtype=np.uint8, mode="r", offset=tensor.start, shape=(size,))


def _as_served(raw: NDArray[np.uint8], dtype: str, served: str) -> memoryview | None:
    """Return the bytes in the served dtype; None when they would have to be rounded."""
    if dtype == served:
        return np.ascontiguousarray(raw).data
    if dtype == "BF16" and served == "F32":
        widened: NDArray[Any] = raw.view(np.uint16).astype(np.uint32) << 16
        return widened.view(np.uint8).data
    if dtype == "F16" and served == "F32":
        return raw.view(np.float16).astype(np.float32).view(np.uint8).data
    return None
