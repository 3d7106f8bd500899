"""The checkpoint that an interrupted midtraining run goes on from: one file that is replaced as a whole."""

import json
import os
import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from core.errors import CheckpointError, ConfigError
from learner.midtraining.losses import LossesBySource
from learner.midtraining.mixture import SessionMixture

CHECKPOINT = "midtrain.pt"


@dataclass(frozen=True)
class MidtrainingRun:
    """A midtraining run. It is the same run if `options` and `files` (name and size of each file it reads) are."""

    model: Any
    optimizer: torch.optim.Optimizer
    mixture: SessionMixture
    losses: LossesBySource
    options: dict[str, Any]
    files: list[list[list[Any]]]


def save(path: Path, run: MidtrainingRun, step: int) -> None:
    state = {
        "model": run.model.state_dict(),
        "optimizer": run.optimizer.state_dict(),
        "mixture": run.mixture.state_dict(),
        "losses": run.losses.state_dict(),
        "rng": torch.get_rng_state(),
        "step": step,
        "options": run.options,
        "files": run.files,
    }
    partial = path.with_suffix(".partial")
    torch.save(state, partial)
    with partial.open("rb") as file:
        os.fsync(file.fileno())
    partial.replace(path)


def restore(path: Path, run: MidtrainingRun) -> int:
    """Load the checkpoint; return the number of steps done.

    Raises CheckpointError for a corrupt file, ConfigError for another run's."""
    if not path.exists():
        return 0
    try:
        state = torch.load(path, weights_only=True)
    except (RuntimeError, EOFError, ValueError, pickle.UnpicklingError) as error:
        raise CheckpointError(f"{path}: {error}") from error
    if state["options"] != run.options:
        raise ConfigError(f"{path}: made with other options: {json.dumps(state['options'])}")
    if state["files"] != run.files:
        raise ConfigError(f"{path}: made from other files: {json.dumps(state['files'])}")
    run.model.load_state_dict(state["model"])
    run.optimizer.load_state_dict(state["optimizer"])
    run.mixture.load_state_dict(state["mixture"])
    run.losses.load_state_dict(state["losses"])
    torch.set_rng_state(state["rng"])
    return int(state["step"])
