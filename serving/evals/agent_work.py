"""An agent's work in a session, as a draft holds it: its changes, its commands, and the state from which it began."""

from collections.abc import Iterable
from typing import Literal

from pydantic import Field

from serving.evals.checkers import CheckerEntry


class FileChange(CheckerEntry):
    """One change of a file: `write` makes `new` its text, `edit` puts it for the one `old`, `everywhere` for each."""

    kind: Literal["write", "edit", "everywhere"]
    path: str = Field(min_length=1)
    old: str = ""
    new: str = ""
    by_helper: bool = False
    """A helper made it: another agent of the session."""

    @property
    def parts(self) -> tuple[str, ...]:
        return (self.path, self.new) if self.kind == "write" else (self.path, self.old, self.new)

    @property
    def text(self) -> str:
        """The text of the tool call that makes the change, without JSON's escapes."""
        return "\n".join(self.parts)


class RanCommand(CheckerEntry):
    """A command that the agent ran, with the exit code of its last run; None: the log does not have it."""

    command: str
    exit_code: int | None = None
    failed_before: bool = False
    """An earlier run failed, so it depends on what the agent changed."""
    doubt: str | None = None
    """Why it is no test."""
    chosen: bool = True

    @property
    def is_test(self) -> bool:
        return self.doubt is None and self.chosen


class State(CheckerEntry):
    """The state from which a session began: the environment of a task on this machine, and the folder of the work."""

    task: str
    digest: str
    """Of the files in the task's folder `environment`, and of its settings for it."""
    workdir: str = Field(pattern=r"^/.*[^/]$")


class AgentWork(CheckerEntry):
    """An agent's work. `image`: the digest that the session's turns name; `state`: None where no known task has it."""

    changes: tuple[FileChange, ...] = Field(min_length=1)
    commands: tuple[RanCommand, ...] = ()
    unseen: tuple[str, ...] = ()
    """What may have changed files in a way that is not known: other commands, and calls without a result."""
    image: str | None = None
    state: State | None = None
    turns: tuple[str, ...] = ()
    """The inference ids of the turns that made the changes."""

    @property
    def tests(self) -> tuple[RanCommand, ...]:
        return tuple(each for each in self.commands if each.is_test)

    def choosing(self, numbers: Iterable[int]) -> "AgentWork":
        """Return the work with these commands as its tests, numbered from 1.

        Raises ValueError naming a number that is no test's."""
        chosen = set(numbers)
        fit = {number for number, each in enumerate(self.commands, 1) if each.doubt is None}
        if not chosen or (others := sorted(chosen - fit)):
            said = f"command {others[0]} cannot be a test" if chosen else "choose at least one command"
            raise ValueError(f"{said}; these can be tests: {', '.join(map(str, sorted(fit))) or 'none'}")
        commands = [each.model_copy(update={"chosen": at in chosen}) for at, each in enumerate(self.commands, 1)]
        return self.model_copy(update={"commands": tuple(commands)})
