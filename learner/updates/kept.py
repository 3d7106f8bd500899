"""The part of the state that a checkpoint keeps: trained parameters, optimizer moments, and small state.

Legend of names: `weights.NAME` is a parameter, `optimizer.NAME.KEY` the optimizer's state for it, `teacher.NAME` the
teacher's average of it."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from core.errors import CheckpointError, ConfigError
from core.settings import LoraSettings
from learner.model.sharded_files import Saving, TensorOnDisk, read_into, stored_tensors
from learner.model.teacher import Teacher
from learner.updates.state import LearnerState


def begin_saving(state: LearnerState, directory: Path) -> None:
    """Begin to write the state's tensors as they are now, in all processes; the one before must have been finished."""
    assert state.saving is None, "one checkpoint at a time"
    state.saving = Saving(_tensors(state), directory, state.ranks)


def finish_saving(state: LearnerState) -> dict[str, str]:
    """Wait until the tensors are written; return the digests of all processes' files. Raises CheckpointError."""
    assert state.saving is not None, "one was begun"
    saving, state.saving = state.saving, None
    return {name: digest for mine in state.ranks.gather(saving.digests()) for name, digest in mine.items()}


def small_part(state: LearnerState) -> dict[str, Any]:
    """Return all but the tensors of the weights and of the optimizer."""
    groups = state.optimizer.state_dict()["param_groups"]
    return {**state.memory(), "optimizer_groups": groups, **_lora(state.lora)}


def load(state: LearnerState, small: dict[str, Any], directory: Path, base: Sequence[Path]) -> None:
    """Load what was kept, in all processes.

    `base`: the shards that adapters stand beside; none: the given model. Raises CheckpointError when it is not of such
    a model, and ConfigError when other weights trained then than do now."""
    _require_same(_lora(state.lora), small)
    if state.lora.rank and base:
        state.policy.load(base)
    elif state.lora.rank and not state.policy.is_given:
        state.policy.load_given()
    state.optimizer.load_state_dict({"state": {}, "param_groups": small["optimizer_groups"]})
    _load_tensors(state, directory)
    state.load_memory(small)


def _lora(settings: LoraSettings) -> dict[str, Any]:
    """Return the settings that kept adapters depend on; for whole weights that is a rank of 0 alone."""
    if not settings.rank:
        return {"lora_rank": 0}
    return {"lora_rank": settings.rank, "lora_alpha": settings.alpha, "lora_targets": tuple(sorted(settings.targets))}


def _require_same(lora: dict[str, Any], small: dict[str, Any]) -> None:
    """Raise ConfigError, naming the setting, where other adapters were kept than train now."""
    for name, now in lora.items():
        then = small.get(name, now)  # builds of before kept the rank alone
        if then != now:
            raise ConfigError(
                f"{name.replace('lora_', 'learner.lora.')} is {now}, and was {then} when its checkpoint was written: "
                "set it back, or delete the learner's directory and start from a version published whole, or with a "
                "rank of 0"
            )


def _load_tensors(state: LearnerState, directory: Path) -> None:
    stored, trained = stored_tensors(directory), _trained(state)
    moments: dict[str, dict[str, Tensor]] = {name: {} for name in trained}
    wanted = {f"weights.{name}": parameter.detach() for name, parameter in trained.items()}
    for full_name, kind in stored.items():
        name, _, key = full_name.removeprefix("optimizer.").rpartition(".")
        if full_name.startswith("optimizer.") and name in trained:
            wanted[full_name] = moments[name][key] = _room_for(kind, trained[name])
    state.teacher = Teacher(state.policy.parameters()) if any(name.startswith("teacher.") for name in stored) else None
    wanted |= _teacher(state)
    if stored.keys() != wanted.keys():
        raise CheckpointError(f"{directory}: other tensors: {sorted(stored.keys() ^ wanted.keys())[:4]}")
    read_into(wanted, directory, state.ranks)
    for name, parameter in trained.items():
        if moments[name]:
            state.optimizer.state[parameter] = moments[name]


def _tensors(state: LearnerState) -> dict[str, Tensor]:
    found: dict[str, Tensor] = {}
    for name, parameter in _trained(state).items():
        found[f"weights.{name}"] = parameter.detach()
        for key, tensor in state.optimizer.state.get(parameter, {}).items():
            found[f"optimizer.{name}.{key}"] = tensor
    return found | _teacher(state)


def _teacher(state: LearnerState) -> dict[str, Tensor]:
    if state.teacher is None:
        return {}
    return {f"teacher.{name}": tensor for name, tensor in zip(_trained(state), state.teacher.tensors, strict=True)}


def _trained(state: LearnerState) -> dict[str, nn.Parameter]:
    return {name: parameter for name, parameter in state.policy.model.named_parameters() if parameter.requires_grad}


def _room_for(kind: TensorOnDisk, parameter: nn.Parameter) -> Tensor:
    """Return an empty tensor, sharded as the parameter is where it has a number for each of its elements."""
    if kind.shape == parameter.shape:
        return torch.empty_like(parameter, dtype=kind.dtype, requires_grad=False)
    return torch.empty(kind.shape, dtype=kind.dtype, device=parameter.device)
