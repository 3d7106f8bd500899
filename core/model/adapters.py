"""Adapters (LoRA, arXiv:2106.09685) as safetensors files: their tensors' names and shapes, and the digest of a version.

    model.layers.0.mlp.up_proj.lora_A.weight    A [rank, inputs] of the module model.layers.0.mlp.up_proj
    model.layers.0.mlp.up_proj.lora_B.weight    B [outputs, rank] of the same

The version's weight of that module is W + (alpha / rank) B A, and all other tensors are the base's. The names are the
model's own, which peft and SGLang read as well."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from blake3 import blake3

from core.errors import WeightsError
from core.model.weights_digest import StoredTensor, digest_of_shards, tensors_of
from core.ports import AdapterConfig

A, B = ".lora_A.weight", ".lora_B.weight"
DTYPES: Final = frozenset({"F32", "BF16", "F16"})


class LowRank(NamedTuple):
    """The two matrices of one module."""

    a: StoredTensor
    b: StoredTensor


def digest_of_version(shards: Sequence[Path], adapter: AdapterConfig | None = None) -> str:
    """Return the digest of whole weights, or of an adapter and what it stands upon. Raises WeightsError."""
    return digest_upon(digest_of_shards(shards), adapter)


def digest_upon(tensors_digest: str, adapter: AdapterConfig | None) -> str:
    """Return the digest of a version whose own tensors have `tensors_digest`."""
    if adapter is None:
        return tensors_digest
    told = f"adapter\0{adapter.base_digest}\0{adapter.rank}\0{float(adapter.alpha)!r}\0{tensors_digest}"
    return str(blake3(told.encode()).hexdigest())


def low_rank_of(shards: Sequence[Path], adapter: AdapterConfig) -> dict[str, LowRank]:
    """Return an adapter's matrices by the name of the weight that they change, such as `lm_head.weight`.

    Raises WeightsError naming the tensor that is no part of an adapter of this rank."""
    tensors = tensors_of(shards)
    if not tensors:
        raise WeightsError(f"{_place(shards)}: an adapter without tensors")
    found: dict[str, LowRank] = {}
    for name, tensor in tensors.items():
        module, is_a = name.removesuffix(A), name.endswith(A)
        other = module + B if is_a else name.removesuffix(B) + A
        if not (is_a or name.endswith(B)) or other not in tensors:
            raise WeightsError(f"{tensor.path}: tensor {name} is not one of an adapter's pairs")
        if len(tensor.shape) != 2 or tensor.shape[0 if is_a else 1] != adapter.rank:
            raise WeightsError(f"{tensor.path}: {name} is of shape {list(tensor.shape)}, and the rank {adapter.rank}")
        if tensor.dtype not in DTYPES:
            raise WeightsError(f"{tensor.path}: {name} is of dtype {tensor.dtype}, which no adapter has")
        if is_a:
            found[f"{module}.weight"] = LowRank(tensor, tensors[other])
    return found


def check_fits(changes: Mapping[str, LowRank], shapes: Mapping[str, Sequence[int]]) -> None:
    """Check matrices against the shapes of the base's weights. Raises WeightsError naming the one that does not fit."""
    for name, low in changes.items():
        if name not in shapes:
            raise WeightsError(f"{low.a.path}: the adapter changes {name}, which the base does not have")
        made = [low.b.shape[0], low.a.shape[1]]
        if made != list(shapes[name]):
            raise WeightsError(f"{low.a.path}: the adapter of {name} is of shape {made}, not {list(shapes[name])}")


def check_base(adapter: AdapterConfig, base_digest: str, what: str) -> None:
    """Check that an adapter stands upon a base. Raises WeightsError naming both digests; `what` says whose they are."""
    if adapter.base_digest != base_digest:
        raise WeightsError(f"{what} is an adapter upon weights {adapter.base_digest}, and the base is {base_digest}")


def _place(shards: Sequence[Path]) -> Path | str:
    return shards[0] if shards else "no file"
