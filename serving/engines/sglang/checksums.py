"""The checksums that SGLang's weights checker reports, computed from the files.

The checksum of a tensor is the first 8 bytes of SHA-256 over its bytes on a CPU, and a hash of its words on a GPU
(sglang 0.5.23, srt/managers/mm_utils.py: tensor_hash), so that *loaded* weights are verified before the first token is
sampled from them. The engine fuses projections; the fused names are those of its Qwen and Llama families."""

import hashlib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from core.model.weights_digest import StoredTensor, tensors_of
from serving.engines.sglang.cuda_hash import cuda_hash

_FUSED = {"qkv_proj": ("q_proj", "k_proj", "v_proj"), "gate_up_proj": ("gate_proj", "up_proj")}
_PART = re.compile(r"\.(q_proj|k_proj|v_proj|gate_proj|up_proj)\.(weight|bias)$")
_SERVED = {"float32": "F32", "bfloat16": "BF16", "float16": "F16"}
_EXACT = {"F32": ("F32", "BF16", "F16"), "BF16": ("BF16",), "F16": ("F16",)}
"""Of each served dtype: those that become it without rounding."""
_BY_TOKEN = ("embed_tokens.weight", "lm_head.weight")
_ROWS = 64  # srt/layers/vocab_parallel_embedding.py: DEFAULT_VOCAB_PADDING_SIZE


def expected(shards: Sequence[Path], served_dtype: str, device: str) -> dict[str, str]:
    """Return checksums, by the engine's names, of tensors whose loaded bytes follow from the file alone.

    Their dtype is the served one, or widens to it without rounding, and their name is the engine's own or one of the
    known fusions. Nor are they filled up: the engine rounds vocabularies up to whole blocks of rows."""
    hash_of = cuda_hash if device == "cuda" else _cpu_hash
    tensors = tensors_of(shards)
    found: dict[str, str] = {}
    for name in tensors:
        part = _PART.search(name)
        if part is None:
            if not name.endswith(_BY_TOKEN) or tensors[name].shape[0] % _ROWS == 0:
                found |= _checksum(tensors, name, [name], served_dtype, hash_of)
            continue
        fused = next(whole for whole, parts in _FUSED.items() if part[1] in parts)
        if part[1] == _FUSED[fused][0]:
            parts = [f"{name[: part.start()]}.{other}.{part[2]}" for other in _FUSED[fused]]
            found |= _checksum(tensors, f"{name[: part.start()]}.{fused}.{part[2]}", parts, served_dtype, hash_of)
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
    tensors: Mapping[str, StoredTensor],
    name: str,
    parts: Sequence[str],
    served_dtype: str,
    hash_of: Callable[[Iterable[memoryview]], str],
) -> dict[str, str]:
    served = _SERVED.get(served_dtype, "")
    if not all(part in tensors and tensors[part].dtype in _EXACT.get(served, ()) for part in parts):
        return {}
    return {name: hash_of(_as_served(_raw(tensors[part]), tensors[part].dtype, served) for part in parts)}


def _cpu_hash(parts: Iterable[memoryview]) -> str:
    hasher = hashlib.sha256()
    for part in parts:
        hasher.update(part)
    return hasher.digest()[:8].hex()


def _raw(tensor: StoredTensor) -> NDArray[np.uint8]:
    """Map a tensor's bytes; they are read when hashed."""
    size = tensor.end - tensor.start
    if not size:
        return np.empty(0, np.uint8)
    return np.memmap(tensor.path, dtype=np.uint8, mode="r", offset=tensor.start, shape=(size,))


def _as_served(raw: NDArray[np.uint8], dtype: str, served: str) -> memoryview:
    """Return the bytes in the served dtype, to which this one widens without rounding."""
    if dtype == served:
        return np.ascontiguousarray(raw).data
    if dtype == "BF16":
        widened: NDArray[Any] = raw.view(np.uint16).astype(np.uint32) << 16
        return widened.view(np.uint8).data
    return raw.view(np.float16).astype(np.float32).view(np.uint8).data
