"""A suite: a directory of TOML files, each of any number of cases.

[[case]]
name = "sum of a list"
prompt = "Write a Python function that sums a list."   # or messages = [{ role = "user", content = "…" }, …]
checker = { kind = "contains", all = ["def ", "sum("] }
weight = 2.0                # 1 if absent
group = "python"            # what is looked at by itself, so that nothing is forgotten unseen
solution = "def total(xs): return sum(xs)"             # kept out of training, with what resembles it

[[case]]
name = "one helper, not two"
task = "tasks/one-helper"   # a task's folder in Harbor's format, seen from this file
quality = { duplicates = true }
"""

import json
import math
import tomllib
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, Literal

from blake3 import blake3
from pydantic import Discriminator, Field, Tag, ValidationError, model_validator

from core.errors import ConfigError, OnwardError
from core.temperature import Temperature
from serving.evals.agent_work import AgentWork
from serving.evals.checkers import Checker, CheckerEntry
from serving.evals.tasks import PARTIAL, instruction_of, is_task, solutions_of, tasks_below
from serving.evals.tasks import digest_of as digest_of_task

DRAFTS = "drafts"
"""The folder of a suite that holds its drafts."""
REJECTED = "rejected"
"""The folder of drafts that holds those which a person refused."""
DraftName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
"""The name of a draft, which becomes that of a file."""
_MOST_TOKENS = 512  # of an answer whose case says nothing of it


class CannotRun(OnwardError):
    """A case got no answer, or its answer could not be checked; says why."""


class CaseMessage(CheckerEntry):
    role: Literal["system", "user", "assistant"]
    content: str


class Origin(CheckerEntry):
    """The turn that a case was mined from, and what became of its answer."""

    session: str
    turn: str
    versions: tuple[str, ...]  # that answered
    received_at: datetime
    reward: float
    reward_spec: str
    outcomes: tuple[str, ...] = ()
    edited: bool  # the solution is what the user made of the answer


class Reuse(CheckerEntry):
    """Who let a session be used, by which key, and what it may be used for: to evaluate, and for nothing else."""

    namespace: str
    user: str | None = None  # its keyed hash; None: the request named nobody
    key: str | None = None  # None: there was no key
    only_for: Literal["evaluation"] = "evaluation"


class Review(CheckerEntry):
    """Who decided on a draft, and when."""

    by: str  # the name of a key, or `shell:` and the name of the machine's user
    at: datetime


class Draft(CheckerEntry):
    """A case that a person has yet to accept, drafted from a session. `why`: it was rejected, by whom `review` says."""

    name: DraftName
    messages: tuple[CaseMessage, ...] = Field(min_length=1)
    solution: str = Field(min_length=1)
    source: Origin
    reuse: Reuse
    why: str | None = None
    review: Review | None = None
    work: AgentWork | None = None
    """An agent's work, where the session has any: the draft then becomes a task."""

    @property
    def asked(self) -> str:
        return _asked(self.messages)

    def kept_out(self) -> dict[str, str]:
        """Return what is kept out of training: the solution, or each change of an agent's work."""
        if self.work is None:
            return {f"{DRAFTS}/{self.name}": self.solution}
        return {f"{DRAFTS}/{self.name}: {at}": each.text for at, each in enumerate(self.work.changes, 1)}


def _asked(messages: Iterable[CaseMessage]) -> str:
    return "\n".join(message.content for message in messages if message.role == "user")


class CaseEntry(CheckerEntry):
    """What every case has."""

    name: str = Field(min_length=1)
    temperature: Temperature = 0.0
    seed: int | None = None
    max_tokens: int | None = Field(default=None, ge=1)
    """Of an answer; None: 512, or as many as the context has room for; in a task as many as its harness asks for."""
    weight: float = Field(default=1.0, gt=0, lt=math.inf)
    group: str = Field(default="all", min_length=1)
    source: Origin | None = None
    """Of a case that was mined from a session; with `reuse`."""
    reuse: Reuse | None = None
    review: Review | None = None
    """Of a draft that a person accepted."""


class Case(CaseEntry):
    """A case that is asked once: its checker tells whether the answer is right."""

    prompt: str | None = None
    messages: tuple[CaseMessage, ...] = ()
    checker: Checker
    solution: str | None = Field(default=None, min_length=1)

    @model_validator(mode="after")
    def _asks_once(self) -> "Case":
        if (self.prompt is None) == (not self.messages):
            raise ValueError("prompt, messages: want one of them")
        return self

    @property
    def asked(self) -> str:
        """What it asks: the prompt, or all that the user says in its messages."""
        return _asked(self.messages) if self.prompt is None else self.prompt

    @property
    def most_tokens(self) -> int:
        """The tokens that an answer may have where the context has room for so many."""
        return _MOST_TOKENS if self.max_tokens is None else self.max_tokens

    def request(self) -> list[dict[str, str]]:
        """Return the messages in the form of OpenAI's chat completions."""
        if self.prompt is not None:
            return [{"role": "user", "content": self.prompt}]
        return [message.model_dump() for message in self.messages]


class TaskBudget(CheckerEntry):
    """The most that one try may use, as of an episode of rollouts."""

    tokens: int = Field(default=100_000, ge=1)
    calls: int = Field(default=100, ge=1)
    seconds: float | None = Field(default=None, gt=0)
    """On the critical path: of calls side by side, the longest counts.

    None: half of what the task's own clock gives, and 600 at most."""
    context_tokens: int | None = Field(default=None, ge=256)
    """None: the model's context, where that is known."""


class Quality(CheckerEntry):
    """What the files must be like that the work leaves, beside its tests."""

    duplicates: bool = False
    """Whether work is lost that says again what a function or class says that was there."""
    most_added_lines: int | None = Field(default=None, ge=0)

    @model_validator(mode="after")
    def _asks_for_something(self) -> "Quality":
        if not self.duplicates and self.most_added_lines is None:
            raise ValueError("duplicates, most_added_lines: want one of them")
        return self


class TaskCase(CaseEntry):
    """A case that is worked on with tools in a sandbox: the task's own tests tell whether the work is right."""

    task: str = Field(min_length=1)
    """The task's folder, seen from the file that has the case."""
    at_least: float = Field(default=1.0, gt=0, le=1)
    """The reward from which on the work is right."""
    tool_set: Literal["usual", "lines"] = "usual"
    budget: TaskBudget = TaskBudget()
    quality: Quality | None = None


AnyCase = Case | TaskCase


def _kind(given: Any) -> str:
    return "task" if isinstance(given, TaskCase) or (isinstance(given, dict) and "task" in given) else "asked"


class _File(CheckerEntry):
    case: tuple[Annotated[Annotated[Case, Tag("asked")] | Annotated[TaskCase, Tag("task")], Discriminator(_kind)], ...]


class _DraftFile(CheckerEntry):
    draft: Draft


@dataclass(frozen=True)
class Suite:
    cases: tuple[AnyCase, ...]
    directories: Mapping[str, Path]  # of the file that has the case, by its name
    digest: str  # of what the cases say, and of their tasks
    tasks: Mapping[str, Path] = field(default_factory=dict)  # the folder of each case that is a task
    drafts: Mapping[Path, Draft] = field(default_factory=dict)  # by the file that each is in; nobody is asked them

    def asked(self) -> dict[str, str]:
        """Return what is asked, by the case's name; of a task its instruction. Raises ConfigError."""
        found = {case.name: case.asked for case in self.cases if isinstance(case, Case)}
        return found | {name: instruction_of(folder) for name, folder in self.tasks.items()}

    def solutions(self) -> dict[str, str]:
        """Return the solutions by the case's name; of a task each file of its own solution. Raises ConfigError."""
        found = {
            case.name: case.solution for case in self.cases if isinstance(case, Case) and case.solution is not None
        }
        for name, folder in self.tasks.items():
            found |= {f"{name}: {path}": text for path, text in solutions_of(folder).items()}
        return found

    def kept_out(self) -> dict[str, str]:
        """Return the solutions of cases and of drafts, which are named as their files below the suite."""
        found = self.solutions()
        for draft in self.drafts.values():
            found |= draft.kept_out()
        return found


def load_suite(directory: Path) -> Suite:
    """Load a suite to ask its cases. Raises ConfigError naming the file, the case and the field."""
    suite = read_suite(directory)
    if not suite.cases:
        waiting = f", and {len(suite.drafts)} drafts: `onward suite review {directory}`" if suite.drafts else ""
        raise ConfigError(f"{directory}: no case files (*.toml){waiting}")
    return suite


def read_suite(directory: Path) -> Suite:
    """Read a suite, which may have nothing but drafts. Raises ConfigError as `load_suite` does."""
    try:
        return _suite(directory)
    except OSError as error:  # a folder that vanishes while it is looked through, or that may not be entered
        raise ConfigError(f"{directory}: cannot be read ({error})") from error


def _suite(directory: Path) -> Suite:
    tasks = tasks_below(directory)
    within = set(tasks)
    paths = [path for path in sorted(directory.rglob("*.toml")) if within.isdisjoint(path.parents)]
    paths = [path for path in paths if not any(part.endswith(PARTIAL) for part in path.relative_to(directory).parts)]
    if not paths:
        raise ConfigError(f"{directory}: no case files (*.toml)")
    drafts = directory / DRAFTS
    for path in (path for path in paths if path.is_relative_to(drafts)):
        if path.parent not in (drafts, drafts / REJECTED):
            raise ConfigError(f"{path}: {drafts} has drafts, and below it {REJECTED}/ alone: nobody reads this file")
    paths = [path for path in paths if not path.is_relative_to(drafts)]
    found = [(case, path) for path in paths for case in cases_in(path, _read(path))]
    counts = Counter(case.name for case, _ in found)
    for case, path in found:
        if counts[case.name] > 1:
            raise ConfigError(f"{path}: case {case.name!r}: name: {counts[case.name]} cases have it")
    folders = {case.name: _folder(case, path) for case, path in found if isinstance(case, TaskCase)}
    _require_named(tasks, folders)
    cases, directories = tuple(case for case, _ in found), {case.name: path.parent for case, path in found}
    return Suite(cases, directories, digest_of(cases, folders), folders, read_drafts(drafts))


def read_drafts(folder: Path) -> dict[Path, Draft]:
    """Return the drafts of a folder by their files; none if it is not there. Raises ConfigError naming the file."""
    found = {path: draft_in(path, _read(path)) for path in sorted(folder.glob("*.toml"))}
    by_name: dict[str, Path] = {}
    for path, draft in found.items():
        if by_name.setdefault(draft.name, path) != path:
            raise ConfigError(f"{path}: draft.name: {by_name[draft.name].name} is named {draft.name}, too")
    return found


def draft_in(path: Path, content: bytes) -> Draft:
    """Return the draft that a file holds. Raises ConfigError naming the file and the field."""
    try:
        return _DraftFile.model_validate(tomllib.loads(content.decode())).draft
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"{path}: {error}") from error
    except ValidationError as error:
        mistakes = [f"{'.'.join(map(str, each['loc']))}: {_said(each['msg'])}" for each in error.errors()]
        raise ConfigError(f"{path}: no draft of a case: " + "; ".join(mistakes)) from error


def digest_of(cases: Iterable[AnyCase], tasks: Mapping[str, Path]) -> str:
    """Return the digest of what the cases say and of their tasks, wherever these lie and in whichever order.

    What a case leaves open is not in it: a field that a later build adds changes nothing. Nor is who accepted it."""
    digest = blake3()
    for case in sorted(cases, key=lambda case: case.name):
        said = case.model_dump(mode="json", exclude_defaults=True, exclude={"task", "review"})
        digest.update(json.dumps(said, sort_keys=True).encode() + b"\n")
    for name, folder in sorted(tasks.items()):
        digest.update(f"{name}\0".encode() + digest_of_task(folder))
    return digest.hexdigest()


def _folder(case: TaskCase, path: Path) -> Path:
    folder = (path.parent / case.task).resolve()
    if not is_task(folder):
        raise ConfigError(f"{path}: case {case.name!r}: task: {folder} has no task.toml and instruction.md")
    return folder


def _require_named(tasks: list[Path], folders: Mapping[str, Path]) -> None:
    """Refuse tasks in the suite's directory that nobody would be asked."""
    named = set(folders.values())
    for folder in tasks:
        if folder.resolve() not in named:
            raise ConfigError(f'{folder}: it is a task, and no case of the suite names it (`task = "…"`)')


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror})") from error


def cases_in(path: Path, content: bytes) -> tuple[AnyCase, ...]:
    """Return the cases that a file holds, one at least. Raises ConfigError naming the file, the case and the field."""
    try:
        table = tomllib.loads(content.decode())
        cases = _File.model_validate(table).case
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: no UTF-8 ({error.reason})") from error
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path}: {error}") from error
    except ValidationError as error:
        mistakes = [f"{_place(table, mistake['loc'])}{_said(mistake['msg'])}" for mistake in error.errors()]
        raise ConfigError(f"{path}: " + "; ".join(mistakes)) from error
    if not cases:
        raise ConfigError(f"{path}: case: there is none")
    return cases


def _place(table: Mapping[str, Any], loc: tuple[str | int, ...]) -> str:
    """Return a place such as `case 'sum of a list': checker.exact.text: `; unnamed cases are numbered from 1."""
    if len(loc) < 2:
        return f"{'.'.join(map(str, loc))}: "
    case = table["case"][loc[1]]
    name = case.get("name") if isinstance(case, dict) else None
    place = ".".join(map(str, loc[3:]))  # behind the kind of case, which nobody wrote
    return f"case {int(loc[1]) + 1 if name is None else repr(name)}: " + (f"{place}: " if place else "")


def _said(message: str) -> str:
    return message.removeprefix("Value error, ")
