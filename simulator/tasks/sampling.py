"""The tasks of the simulated team: small functions to write (`write`) and small bugs to fix (`fix`).

A task's identity (kind, repository, template, function name, argument names) decides by a hash whether it is served to
the product or may stand in the corpus that the model is midtrained on: never both.
"""

import hashlib
import itertools
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from simulator.tasks.templates import LISTS, NUMBERS, STRINGS, TEMPLATES, Template

Kind = Literal["write", "fix"]
Split = Literal["served", "corpus"]

REPOS = ("billing", "games", "infra", "web")
SUFFIXES = ("", "_cart", "_week", "_team")
ACCUMULATOR, LOOP_VARIABLE = "out", "x"
_POOLS = {"X": LISTS, "N": NUMBERS, "S": STRINGS}


@dataclass(frozen=True)
class UserTask:
    """One request of a user, with the tests that tell whether it was met.

    `tests` are (expression, expected repr). `source_lines`, `bug_line` (from 1) and `correct_line` belong to `fix`.
    """

    task_id: str
    kind: Kind
    repo: str
    template: Template
    function: str
    names: Mapping[str, str]
    request: str
    tests: tuple[tuple[str, str], ...]
    source_lines: tuple[str, ...] = ()
    bug_line: int = 0
    correct_line: str = ""

    @property
    def path(self) -> str:
        return f"{self.function}.py"

    def solution(self, *, hints: bool, one_liner: bool) -> str:
        """Return the function as somebody of this taste writes it."""
        return "\n".join([self.header(hints=hints), *self.body(one_liner=one_liner)])

    def header(self, *, hints: bool) -> str:
        template = self.template
        if hints:
            arguments = ", ".join(f"{self.names[slot]}: {kind}" for slot, kind in template.arguments)
            return f"def {self.function}({arguments}) -> {template.returns}:"
        return f"def {self.function}({', '.join(self.names[slot] for slot, _ in template.arguments)}):"

    def body(self, *, one_liner: bool) -> list[str]:
        if one_liner:
            return ["    return " + self.template.expression.format(**self.names)]
        return ["    " + line.format(**self.names) for line in self.template.loop]


def split_of(identity: str) -> Split:
    """Return the split that an identity belongs to."""
    return "served" if hashlib.blake2b(identity.encode(), digest_size=1).digest()[0] % 2 else "corpus"


def sample_task(rng: random.Random, kind: Kind, split: Split = "served") -> UserTask:
    """Draw a task uniformly over repositories, templates and names of the split."""
    while True:
        task = _draw(rng, kind)
        if split_of(identity(task)) == split:
            return task


def identity(task: UserTask) -> str:
    return f"{task.kind}|{task.request}"


def names_of(template: Template) -> Iterator[dict[str, str]]:
    """Yield all choices of names for a template's slots."""
    slots = [slot for slot, _ in template.arguments]
    for names in itertools.product(*(_POOLS[slot] for slot in slots)):
        yield dict(zip(slots, names, strict=True)) | {"A": ACCUMULATOR, "V": LOOP_VARIABLE}


def _draw(rng: random.Random, kind: Kind) -> UserTask:
    template, repo = rng.choice(TEMPLATES), rng.choice(REPOS)
    function = rng.choice(template.verbs) + rng.choice(SUFFIXES)
    names = {slot: rng.choice(_POOLS[slot]) for slot, _ in template.arguments} | {"A": ACCUMULATOR, "V": LOOP_VARIABLE}
    if kind == "write":
        return write_task(template, repo, function, names)
    place = rng.choice(sorted(template.bugs))
    return _fix_task(template, repo, function, names, place, rng.choice(template.bugs[place]))


def _tests(template: Template, function: str) -> tuple[tuple[str, str], ...]:
    return tuple((f"{function}({arguments})", expected) for arguments, expected in template.cases)


def write_task(template: Template, repo: str, function: str, names: dict[str, str]) -> UserTask:
    arguments = ", ".join(names[slot] for slot, _ in template.arguments)
    request = f"[{repo}] write {function}({arguments}): {template.description.format(**names)}"
    return UserTask(_task_id(request), "write", repo, template, function, names, request, _tests(template, function))


def _fix_task(template: Template, repo: str, function: str, names: dict[str, str], place: int, bug: str) -> UserTask:
    arguments, expected = template.cases[0]
    shown = ", ".join(names[slot] for slot, _ in template.arguments)
    request = f"[{repo}] fix {function}.py: {function}({shown}) of {arguments} should be {expected}"
    good = UserTask("", "fix", repo, template, function, names, request, _tests(template, function))
    lines = [good.header(hints=False), *good.body(one_liner=False)]
    correct = lines[place + 1]
    lines[place + 1] = "    " + bug.format(**names)
    return UserTask(
        task_id=_task_id("\n".join([request, *lines])),
        kind="fix",
        repo=repo,
        template=template,
        function=function,
        names=names,
        request=request,
        tests=good.tests,
        source_lines=tuple(lines),
        bug_line=place + 2,
        correct_line=correct,
    )


def _task_id(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
