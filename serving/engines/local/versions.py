"""Versions in memory: published safetensors shards become a model beside those that serve."""

import copy
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TypeVar

import torch
from blake3 import blake3
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from core.errors import WeightsError
from core.ports import WeightsRef

Model = TypeVar("Model", bound=nn.Module)
_DTYPE_NAMES = {torch.bfloat16: "BF16", torch.float16: "F16", torch.float32: "F32"}


def build_version(template: Model, shards: Sequence[Path], ref: WeightsRef) -> tuple[Model, str]:
    """Build a model like `template` with the shards' weights; return it and the digest of its weights.

    The digest is that of core.model.weights_digest. The modules are copied, the new tensors put in their places, and
    what no weights touch is shared. Raises WeightsError naming the file and tensor that does not fit, or when the
    digest is not the reference's."""
    names = _names_by_tensor(template)
    known = {name: tensor for tensor, aliases in names for name in aliases}
    stored: dict[str, tuple[Path, Tensor]] = {}
    for path, name, tensor in _read(shards):
        if name not in known:
            raise WeightsError(f"{path}: tensor {name} is none of the model's")
        if tensor.shape != known[name].shape:
            raise WeightsError(f"{path}: {name} is of shape {list(tensor.shape)}, not {list(known[name].shape)}")
        if tensor.dtype not in _DTYPE_NAMES:
            raise WeightsError(f"{path}: {name} is of dtype {tensor.dtype}, which the engine cannot load")
        stored[name] = (path, tensor)
    memo: dict[int, object] = {id(template.config): template.config}
    memo |= {id(buffer): buffer for buffer in template.buffers()}
    held: dict[str, Tensor] = {}
    for tensor, aliases in names:
        found = [alias for alias in aliases if alias in stored]
        if not found:
            raise WeightsError(f"{shards[0].parent}: tensor {aliases[0]} is missing")
        path, raw = stored[found[0]]
        if any(not torch.equal(raw, stored[alias][1]) for alias in found[1:]):
            raise WeightsError(f"{path}: {' and '.join(found)} are one tensor in the model, and differ")
        new = raw.to(device=tensor.device, dtype=tensor.dtype, copy=True)  # never a view of a file that may change
        memo[id(tensor)] = nn.Parameter(new, requires_grad=False) if isinstance(tensor, nn.Parameter) else new
        lossless = torch.promote_types(raw.dtype, new.dtype) == new.dtype
        held |= dict.fromkeys(found, new.to(raw.dtype) if lossless else raw)
    digest = _digest(held)
    if digest != ref.digest:
        raise WeightsError(f"{ref.path}: what was loaded has digest {digest}, version {ref.version} {ref.digest}")
    return copy.deepcopy(template, memo), digest


def _names_by_tensor(model: nn.Module) -> list[tuple[Tensor, list[str]]]:
    """Return each tensor of the state once, with all its names: tied ones have several."""
    found: dict[int, tuple[Tensor, list[str]]] = {}
    for name, tensor in model.state_dict(keep_vars=True).items():
        found.setdefault(id(tensor), (tensor, []))[1].append(name)
    return list(found.values())


def _read(shards: Sequence[Path]) -> Iterator[tuple[Path, str, Tensor]]:
    for path in shards:
        try:
            with safe_open(path, framework="pt") as file:
                for name in file.keys():  # noqa: SIM118  # it is no dict
                    yield path, name, file.get_tensor(name)
        except (OSError, SafetensorError) as error:
            raise WeightsError(f"{path}: cannot be read ({error})") from error


def _digest(tensors: dict[str, Tensor]) -> str:
    hasher = blake3()
    for name in sorted(tensors):
        tensor = tensors[name]
        shape = ",".join(map(str, tensor.shape))
        hasher.update(f"{name}\0{_DTYPE_NAMES[tensor.dtype]}\0{shape}\0".encode())
        hasher.update(tensor.cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return str(hasher.hexdigest())
