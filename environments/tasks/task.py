"""A task: what an agent is asked to do, where, and the tests that judge what it did."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from environments.sandboxes.sandbox import SandboxSpec


@dataclass(frozen=True)
class Healthcheck:
    """A command that must succeed before the agent begins; the meaning of each number is Docker's."""

    command: str
    interval_seconds: float = 5.0
    timeout_seconds: float = 30.0
    start_period_seconds: float = 0.0
    start_interval_seconds: float = 5.0
    retries: int = 3

    @property
    def longest_seconds(self) -> float:
        """For how long it may be waited for, at most, until it has failed by its own numbers."""
        starting = self.start_period_seconds + (self.start_interval_seconds if self.start_period_seconds else 0.0)
        return starting + self.retries * (self.interval_seconds + self.timeout_seconds)


@dataclass(frozen=True)
class Hook:
    """A command that runs in the agent's sandbox once the agent is done, before the tests see anything."""

    command: str
    timeout_seconds: float = 60.0


@dataclass(frozen=True)
class Artifact:
    """A file or folder of the agent's sandbox that a separate verifier is given at the same place."""

    source: str
    exclude: tuple[str, ...] = ()


@dataclass(frozen=True)
class JudgedAnswer:
    """How another library judges an answer in words: by what its dataset is made of, and the entry's number.

    `file` is where the agent leaves the answer."""

    library: str
    made_by: str
    index: int
    file: str


@dataclass(frozen=True)
class Task:
    """One task, whoever wrote it down: a folder in Harbor's format, or an environment of another library.

    `name` is unique in its suite; `digest` is that of everything the agent or the tests can see (instruction,
    environment, tests); `image` is what the sandbox is made from, by its digest, None for the machine's own files.
    `folder` is None for a task that another library makes. `verifier_spec` is the sandbox of a verifier that has one
    of its own, None where the tests run in the agent's. `answer` is judged by another library; a task with neither
    tests nor answer is judged by the harness of that library, which works on it."""

    name: str
    instruction: str
    digest: str
    spec: SandboxSpec
    agent_timeout_seconds: float
    verifier_timeout_seconds: float
    image: str | None = None
    folder: Path | None = None
    tests: Path | None = None
    solution: Path | None = None
    solution_environment: Mapping[str, str] = field(default_factory=dict)
    verifier_environment: Mapping[str, str] = field(default_factory=dict)
    verifier_spec: SandboxSpec | None = None
    artifacts: tuple[Artifact, ...] = ()
    hooks: tuple[Hook, ...] = ()
    healthcheck: Healthcheck | None = None
    answer: JudgedAnswer | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)  # as its author wrote it
