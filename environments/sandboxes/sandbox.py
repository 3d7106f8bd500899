"""The port of sandboxes: places with files of their own where commands run, and from which nothing else is reached."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

WORKSPACE = "/workspace"  # where the working copy lies, unless the task says otherwise


@dataclass(frozen=True)
class Limits:
    """The most that all processes of one sandbox may use together."""

    memory_bytes: int = 1 << 30
    cpus: float = 1.0
    processes: int = 128
    disk_bytes: int = 1 << 30
    output_bytes: int = 1 << 20  # of one command's stdout, and as much of its stderr; what is beyond is cut


@dataclass(frozen=True)
class SandboxSpec:
    """What a sandbox is made of. Specs that are equal may be served by one that was made ahead.

    `root` is the file system below, never written: an unpacked image, or None for the machine's own programs.
    `workspace` is copied on write to `workdir`: what is done to it there is never seen outside, and is gone when the
    sandbox closes. `layers` hold, under the name `root`, what was changed of the root when its image was made, oldest
    first: they are mounted, and cost each sandbox nothing.
    `folders` are read-only folders of this machine by their place inside. None of these may change while in use."""

    workspace: Path | None = None
    workdir: str = WORKSPACE
    root: Path | None = None
    layers: tuple[Path, ...] = ()
    folders: Mapping[str, Path] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    network: bool = False
    limits: Limits = Limits()

    def __post_init__(self) -> None:
        """Raise ValueError for layers over this machine's own programs, of which nothing is changed."""
        if self.layers and self.root is None:
            raise ValueError("layers: there is no root that they lie over")


@dataclass(frozen=True)
class CommandResult:
    """How one command ended.

    `exit_code` is 128 + the signal's number for a killed one, `timed_out` says that its time was over, `cut_bytes` how
    much of its output was left out. Times are seconds since the Unix epoch."""

    exit_code: int
    stdout: bytes
    stderr: bytes
    started_at: float
    ended_at: float
    timed_out: bool = False
    out_of_memory: bool = False
    cut_bytes: int = 0

    @property
    def seconds(self) -> float:
        return self.ended_at - self.started_at


class Sandbox(Protocol):
    """One open sandbox, in which commands may run side by side.

    Methods raise InfrastructureFailure where the sandbox itself fails, and never for what a command does."""

    async def run(
        self,
        command: Sequence[str],
        *,
        timeout_seconds: float,
        stdin: bytes = b"",
        workdir: str | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> CommandResult: ...

    async def read(self, path: str) -> bytes:
        """Return a file's content.

        Raises FileNotFoundError, IsADirectoryError or PermissionError, as a program inside would see them."""
        ...

    async def write(self, path: str, content: bytes, *, executable: bool = False) -> None:
        """Write a file, with the folders that it needs."""
        ...

    async def copy_in(self, source: Path, target: str) -> None:
        """Copy a folder of this machine to `target`, which a task's tests need once the agent is done."""
        ...

    async def remove(self, paths: Sequence[str], links: Mapping[str, str]) -> None:
        """Remove files and folders, each after what lies in it.

        What is not there is passed over; a folder stays that holds more than `paths` say, and so does a symbolic link
        that leads where `links` says."""
        ...

    async def end_commands(self) -> None:
        """End every process that commands have started, also those that are being waited for; files stay.

        Who judges what an agent left does so first: what runs on could change the tests or their verdict."""
        ...

    async def close(self) -> None:
        """End every process inside and forget its files. Closing twice is harmless."""
        ...

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class Sandboxes(Protocol):
    """Makes sandboxes of one kind."""

    async def open(self, spec: SandboxSpec) -> Sandbox:
        """Return a new sandbox. Raises InfrastructureFailure where none can be made."""
        ...

    async def close(self) -> None:
        """Close all that were opened here, and what was prepared for others."""
        ...
