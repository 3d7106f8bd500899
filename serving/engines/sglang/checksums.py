"""The checksums that SGLang's weights checker reports, computed from the files.

The checksum of a tensor is the first 8 bytes of SHA-256 over its bytes on a CPU, and a hash of its words on a GPU
(sglang 0.5.23, srt/managers/mm_utils.py: tensor_hash), so that *loaded* weights are verified before the first token is
sampled from them. The engine fuses projections; the fused names are those of its Qwen and Llama families. Of tensors
with other names nothing is computed: an engine may hold them in a form of its own."""

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
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
_KNOWN = re.compile(
    r"(^|\.)(embed_tokens|lm_head|\w*norm|qkv_proj|o_proj|gate_up_proj|down_proj)\.(weight|bias)$", re.ASCII
)
"""Of the engine's names: those whose bytes it loads as they are."""
_ON_EVERY_RANK = re.compile(r"(^|\.)(norm|\w*layernorm)\.(weight|bias)$", re.ASCII)
"""Those that each rank holds whole, and that are not quantized."""
_BY_TOKEN = ("embed_tokens.weight", "lm_head.weight")
_ROWS = 64  # srt/layers/vocab_parallel_embedding.py: DEFAULT_VOCAB_PADDING_SIZE


@dataclass(frozen=True)
class RankChecksums:
    """What one rank of an engine says that it has loaded."""

    checksums: Mapping[str, str]  # by the engine's own names
    shares: int  # ranks over which each large tensor is spread; 1: this one holds it whole
    place: tuple[int, ...]  # among the ranks


@dataclass(frozen=True)
class ExpectedChecksums:
    """What an engine must say of the weights that it loaded from files."""

    checksums: Mapping[str, str]  # by its names, of the tensors whose loaded bytes follow from the files alone
    content: str  # a digest of all that it loads, in the dtype that it serves
    is_exact: bool  # it rounds nothing of that, so that other content is other bytes in it


def expected(shards: Sequence[Path], served_dtype: str, device: str) -> ExpectedChecksums:
    """Compute what an engine must say that serves these files in a dtype on a device."""
    hash_of = cuda_hash if device == "cuda" else _cpu_hash
    tensors, served = tensors_of(shards), _SERVED.get(served_dtype, "")
    sources = _sources(tensors, served)
    checksums = {
        name: hash_of(_as_served(_raw(tensors[part]), tensors[part].dtype, served) for part in parts)
        for name, parts in sources.items()
    }
    content = hashlib.sha256("".join(f"{name}\0{checksums[name]}\0" for name in sorted(checksums)).encode())
    for name in sorted(tensors.keys() - {part for parts in sources.values() for part in parts}):
        tensor = tensors[name]
        dtype = served if tensor.dtype in _EXACT.get(served, ()) else tensor.dtype
        content.update(f"{name}\0{dtype}\0".encode())
        content.update(_as_served(_raw(tensor), tensor.dtype, dtype))
    is_exact = all(tensor.dtype in _EXACT.get(served, ()) for tensor in tensors.values())
    return ExpectedChecksums(checksums, content.hexdigest(), is_exact)


def computable(shards: Sequence[Path], served_dtype: str) -> Set[str]:
    """Return the tensors, by the engine's names, that `expected` has checksums of, without computing these."""
    return _sources(tensors_of(shards), _SERVED.get(served_dtype, "")).keys()


def comparable(rank: RankChecksums, computed: Set[str], *, is_quantized: bool) -> list[str]:
    """Return which of the computed tensors a rank holds as they are in the files."""
    names = sorted(computed & rank.checksums.keys())
    if rank.shares == 1 and not is_quantized:
        return names
    return [name for name in names if _ON_EVERY_RANK.search(name)]


def _sources(tensors: Mapping[str, StoredTensor], served: str) -> dict[str, list[str]]:
    """Return which tensors of the files each loaded tensor is made of, of those whose bytes follow from them.

    Their dtype is the served one, or widens to it without rounding. Nor are they filled up: the engine rounds
    vocabularies up to whole blocks of rows."""
    found: dict[str, list[str]] = {}
    for name in tensors:
        part = _PART.search(name)
        if part is None:
            if not name.endswith(_BY_TOKEN) or tensors[name].shape[0] % _ROWS == 0:
                found[name] = [name]
            continue
        fused = next(whole for whole, parts in _FUSED.items() if part[1] in parts)
        if part[1] == _FUSED[fused][0]:
            parts = [f"{name[: part.start()]}.{other}.{part[2]}" for other in _FUSED[fused]]
            found[f"{name[: part.start()]}.{fused}.{part[2]}"] = parts
    exact = _EXACT.get(served, ())
    return {
        name: parts
        for name, parts in found.items()
        if _KNOWN.search(name) and all(part in tensors and tensors[part].dtype in exact for part in parts)
    }


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
