"""`onward rollouts --demo`: a service of its own below a directory, and the tasks that come with the program."""

import asyncio
import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Literal

from environments.errors import InfrastructureFailure
from environments.tasks.public.textcraft import textcraft
from onward.commands.demo import PRETRAINED_NAME, pretrained_settings, running_service
from onward.commands.rollouts.by_hand import run_by_hand
from onward.directory.layout import PRETRAINED_MODEL, SHIPPED_MODEL
from onward.output import console
from onward.wiring.rollouts import READABLE

_TASKS: Final = Path(__file__).resolve().parents[3] / "environments" / "tasks"
_CONTEXT_TOKENS: Final = 8192
_PUBLIC_OF_EACH_SPLIT: Final = 2
_TOKENS: Final = {"tiny": 600, "smollm2": 200}  # of an episode: what two cores can do with ten in three minutes
Model = Literal["tiny", "smollm2"]


def run_demo(output: Path, model: Model, images: Path, overrides: Mapping[str, str]) -> None:
    """Run one episode of each task against a service that lasts as long; `images` is kept for the next time.

    The service is begun anew in `service` below the output: what else lies there may be a service with users. Raises
    ConfigError where the model is not there."""
    directory = output / "service"
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    sets = _task_sets(images)
    settings = {**_of_the_model(directory, model), **_of_rollouts(model, images, sets), **overrides}
    with running_service(directory, settings) as urls:
        run_by_hand(directory, {**settings, "ONWARD_ROLLOUTS__REQUESTS__BASE_URL": urls[0] + "/v1"})


def _of_the_model(directory: Path, model: Model) -> dict[str, str]:
    if model == PRETRAINED_NAME:
        settings = {**pretrained_settings(0), "ONWARD_SERVING__CONTEXT_LENGTH": str(_CONTEXT_TOKENS)}
        return {**settings, "ONWARD_SERVING__MODEL": str(with_tools(directory / "model"))}
    return {"ONWARD_SERVING__MODEL": str(with_longer_context(directory / "model"))}


def with_tools(place: Path) -> Path:
    """Return the pretrained model with the shipped one's template, which shows tools; its own shows none."""
    shutil.copytree(PRETRAINED_MODEL.resolve(), place)
    shutil.copy(SHIPPED_MODEL / "chat_template.jinja", place)
    return place


def with_longer_context(place: Path) -> Path:
    """Return the shipped model with room for a harness's prompt.

    It was trained on shorter texts, and finds nothing sensible to say beyond them; the rest is as with any model."""
    shutil.copytree(SHIPPED_MODEL, place)
    config = place / "config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "max_position_embeddings": _CONTEXT_TOKENS}))
    return place


def _task_sets(images: Path) -> dict[str, dict[str, list[str]]]:
    """Return ten tasks by their sets: four public ones, and six of our own.

    Where the public ones cannot be had, they are ten of our own, and a line says why."""
    own = [str(task) for task in sorted((_TASKS / "own").iterdir()) if (task / "task.toml").exists()]
    images.mkdir(parents=True, exist_ok=True)
    os.umask(READABLE)
    try:
        public = asyncio.run(textcraft(images / "public", _PUBLIC_OF_EACH_SPLIT))
    except InfrastructureFailure as failure:
        console().print(f"the public tasks are left out: {failure}")
        return {"own": {"folders": own}}
    return {"own": {"folders": own[: len(own) - 2 * _PUBLIC_OF_EACH_SPLIT]}, "textcraft": {"folders": [str(public)]}}


def _of_rollouts(model: Model, images: Path, sets: dict[str, dict[str, list[str]]]) -> dict[str, str]:
    values = {
        "task_sets": _toml(sets),
        "images": _toml({"python:3.*-slim*": "machine"}),
        "prepared": str(images.resolve()),
        "tries": "1",
        "episode.tokens": str(_TOKENS[model]),
        "episode.calls": "20",
        "episode.critical_path_s": "60",
        "episode.context_tokens": str(_CONTEXT_TOKENS),
    }
    learns = {"ONWARD_LEARNER__ENABLED": "false"}  # ten episodes are no batch to learn from
    return learns | {f"ONWARD_ROLLOUTS__{name.upper().replace('.', '__')}": value for name, value in values.items()}


def _toml(value: object) -> str:
    """Return a value as an inline table of TOML."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(key)} = {_toml(each)}" for key, each in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_toml, value)) + "]"
    return json.dumps(value)
