"""What an agent did with tools in a session, as its draft has it: what it changed and ran, and what it began from."""

from collections.abc import Iterable
from typing import Literal

from pydantic import Field

from serving.evals.checkers import CheckerEntry


class FileChange(CheckerEntry):
    """One change of a file: `write` puts `new` into it, `edit` puts it in the place of `old`, `everywhere` of each."""

    kind: Literal["write", "edit", "everywhere"]
    path: str = Field(min_length=1)
    old: str = ""
    new: str = ""
    by_helper: bool = False
    """Another agent of the session made it, whom the model's own turns had asked."""

    @property
    def parts(self) -> tuple[str, ...]:
        return (self.path, self.new) if self.kind == "write" else (self.path, self.old, self.new)

    @property
    def text(self) -> str:
        """What a tool call says that makes the change, without the escapes of its JSON."""
        return "\n".join(self.parts)


class RanCommand(CheckerEntry):
    """A command that the session ran, as it ended the last time; None: nobody was told how."""

    command: str
    exit_code: int | None = None
    failed_before: bool = False
    """It failed at first: what it looks at is what the work changed."""
    doubt: str | None = None
    """Why it is not taken for a test."""
    chosen: bool = True

    @property
    def is_test(self) -> bool:
        return self.doubt is None and self.chosen


class State(CheckerEntry):
    """What the session began from: the environment of a task on this machine, and where in it the work lies."""

    task: str
    digest: str
    """Of the files of its folder `environment`, and of what its settings say of it."""
    workdir: str = Field(pattern=r"^/.*[^/]$")


class AgentWork(CheckerEntry):
    """All of it. `image`: the digest that the session's turns name; `state` is None where no known task has it."""

    changes: tuple[FileChange, ...] = Field(min_length=1)
    commands: tuple[RanCommand, ...] = ()
    unseen: tuple[str, ...] = ()
    """What may have changed files, too, and nobody can tell how: other commands, calls without a result."""
    image: str | None = None
    state: State | None = None
    turns: tuple[str, ...] = ()
    """Those that asked for the changes, by their inference ids."""

    @property
    def tests(self) -> tuple[RanCommand, ...]:
        return tuple(each for each in self.commands if each.is_test)

    def choosing(self, numbers: Iterable[int]) -> "AgentWork":
        """Return it with these commands as its tests, counted from 1. Raises ValueError naming one that is none."""
        chosen = set(numbers)
        fit = {number for number, each in enumerate(self.commands, 1) if each.doubt is None}
        if not chosen or (others := sorted(chosen - fit)):
            said = f"{others[0]} is no command that can be a test" if chosen else "choose one at least"
            raise ValueError(f"{said}: there are {', '.join(map(str, sorted(fit))) or 'none'}")
        commands = [each.model_copy(update={"chosen": at in chosen}) for at, each in enumerate(self.commands, 1)]
        return self.model_copy(update={"commands": tuple(commands)})
