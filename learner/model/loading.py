"""The model's directory as a module: whole, or a shard of each tensor in each process.

A process that has a share of the model makes the module without memory (torch's meta device) and then reads its rows of
each tensor, one tensor at a time: it never has more than its shard and one tensor."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Shard
from transformers import AutoConfig, AutoModelForCausalLM

from core.errors import WeightsError
from core.model.files import LOCAL, refuse_unfit
from core.model.weights_digest import StoredTensor, tensors_of

_HALVES = {"BF16": torch.bfloat16, "F16": torch.float16}


def stored_precision(files: Sequence[Path]) -> torch.dtype:
    """Return the precision in which the files' tensors lose nothing: half where all of them are, else float32."""
    kinds = {tensor.dtype for tensor in tensors_of(files).values()}
    return _HALVES.get(kinds.pop(), torch.float32) if len(kinds) == 1 else torch.float32


def load_whole(directory: Path, precision: torch.dtype) -> Any:
    """Load a model of its files. Raises ConfigError where they lack tensors of it, or have others in their place."""
    told: dict[str, Any] = {"output_loading_info": True, "ignore_mismatched_sizes": True}  # which we refuse
    loaded: Any = AutoModelForCausalLM.from_pretrained(
        directory, config=_config(directory), dtype=precision, use_safetensors=True, **told, **LOCAL
    )
    model, found = loaded
    refuse_unfit(directory, found["missing_keys"], {name for name, *_ in found["mismatched_keys"]})
    return model


def make_empty(directory: Path, precision: torch.dtype) -> Any:
    """Make the model without its parameters' memory. Its buffers, which follow from its config, are there."""
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(_config(directory), dtype=precision, trust_remote_code=False)
    for module in model.modules():
        for name, buffer in list(module.named_buffers(recurse=False)):
            is_kept = name not in module._non_persistent_buffers_set
            module.register_buffer(name, torch.empty_like(buffer, device="cpu"), persistent=is_kept)
        if any(True for _ in module.buffers(recurse=False)):
            model._init_weights(module)  # transformers' own hook, by which it makes them itself
    return model


def can_fill(model: nn.Module, files: Sequence[Path]) -> bool:
    """Return whether the files hold the model's tensors by its own names and shapes.

    Some families' files are laid out otherwise (experts one by one), and transformers puts them together."""
    held, tied = tensors_of(files), set(model.state_dict()) - {name for name, _ in model.named_parameters()}
    is_there = all(
        name in held and held[name].shape == tuple(parameter.shape) for name, parameter in model.named_parameters()
    )
    return is_there and not tied & {name for name, _ in model.named_buffers()}


@torch.no_grad()
def fill(model: nn.Module, files: Sequence[Path]) -> None:
    """Read this process's rows of those tensors of a sharded model that have no memory yet.

    Raises WeightsError naming the file that cannot be read."""
    held, made = tensors_of(files), dict[nn.Parameter, nn.Parameter]()
    names = {parameter: name for name, parameter in model.named_parameters() if parameter.is_meta}
    for module in model.modules():
        for own, parameter in list(module.named_parameters(recurse=False)):
            if parameter in names:  # once, where several modules are tied to it
                if parameter not in made:
                    made[parameter] = _filled(held[names[parameter]], names[parameter], parameter)
                setattr(module, own, made[parameter])
    model.load_state_dict({}, strict=False, assign=True)  # of nothing: it makes FSDP look at its tensors again


def read_rows(stored: StoredTensor, name: str, tensor: Tensor) -> Tensor:
    """Return a stored tensor, or this process's rows of it where `tensor` is a shard.

    The file is closed again, so that its pages do not stay in memory. Raises WeightsError naming the file."""
    rows = slice(None)
    if isinstance(tensor, DTensor):
        assert tensor.placements == (Shard(0),)
        step = -(-tensor.shape[0] // tensor.device_mesh.size())
        start = tensor.device_mesh.get_local_rank() * step
        rows = slice(min(start, tensor.shape[0]), min(start + step, tensor.shape[0]))
    try:
        with safe_open(stored.path, framework="pt") as file:
            return file.get_slice(name)[rows].clone() if stored.shape else file.get_tensor(name)
    except (SafetensorError, OSError) as error:
        raise WeightsError(f"{stored.path}: {error}") from error


def _filled(stored: StoredTensor, name: str, parameter: nn.Parameter) -> nn.Parameter:
    mesh = parameter.data.device_mesh
    rows = read_rows(stored, name, parameter.data).to(mesh.device_type, parameter.dtype)
    shards = DTensor.from_local(
        rows, mesh, [Shard(0)], run_check=False, shape=parameter.shape, stride=parameter.stride()
    )
    return nn.Parameter(shards, requires_grad=parameter.requires_grad)


def _config(directory: Path) -> Any:
    """Return the model's config with dropout switched off."""
    config = AutoConfig.from_pretrained(directory, **LOCAL)
    for part in {id(each): each for each in (config, config.get_text_config())}.values():
        for name, value in part.to_dict().items():
            if "drop" in name and isinstance(value, float):
                setattr(part, name, 0.0)
    return config
