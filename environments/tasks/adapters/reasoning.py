"""Tasks of `reasoning-gym`: each entry of a dataset is a question, and the dataset's own scorer judges the answer.

The agent leaves its answer in a file, so that any harness can work on it. The library makes an entry from its seed and
number, so a task carries these and not the solution, which no agent's sandbox holds. `scoring.py` judges."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from blake3 import blake3

from environments.errors import TaskError
from environments.sandboxes.sandbox import WORKSPACE, SandboxSpec
from environments.tasks.task import JudgedAnswer, Task

LIBRARY = "reasoning-gym"
_FILE = f"{WORKSPACE}/answer.txt"
_ASKED = "\n\nWrite your answer, and nothing but the answer, into the file `{file}`.\n"


@dataclass(frozen=True)
class Dataset:
    """A dataset of reasoning-gym and how it is made; `config` are its own parameters."""

    name: str
    size: int
    seed: int = 0
    config: Mapping[str, Any] | None = None


def reasoning_tasks(dataset: Dataset, agent_timeout_seconds: float = 600.0) -> list[Task]:
    """Return a task for each entry. Raises TaskError for a dataset or a parameter that the library does not know."""
    made = json.dumps([dataset.name, dataset.size, dataset.seed, dict(dataset.config or {})], sort_keys=True)
    return [
        Task(
            name=f"{LIBRARY}/{dataset.name}/{index}",
            instruction=entry["question"].rstrip() + _ASKED.format(file=_FILE),
            digest=str(blake3(f"{_library_version()} {made} {index}".encode()).hexdigest()),
            spec=SandboxSpec(),
            agent_timeout_seconds=agent_timeout_seconds,
            verifier_timeout_seconds=60.0,
            answer=JudgedAnswer(LIBRARY, made, index, _FILE),
            metadata={"library": LIBRARY, "dataset": dataset.name},
        )
        for index, entry in enumerate(_dataset(made))
    ]


def question_and_answer(answer: JudgedAnswer) -> tuple[str, str]:
    """Return what a task's entry asks, without where to write it, and the dataset's own answer."""
    entry = _dataset(answer.made_by)[answer.index]
    return entry["question"], str(entry["answer"])


@lru_cache(maxsize=32)
def _dataset(made_by: str) -> Any:
    try:
        import reasoning_gym  # the library brings a great many others, and most who read tasks need none of them
    except ImportError as error:
        raise TaskError(f"questions of {LIBRARY} need it: make reasoning") from error
    name, size, seed, config = json.loads(made_by)
    try:
        return reasoning_gym.create_dataset(name, size=size, seed=seed, **config)
    except (ValueError, TypeError, AssertionError) as error:
        raise TaskError(f"{LIBRARY} makes no dataset {name} of {config}: {error}") from error


def _library_version() -> str:
    from importlib.metadata import version

    return version(LIBRARY)
