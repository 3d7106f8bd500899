"""The taste of the simulated team, and the truth about an answer: neither is told to the service.

What is liked depends on what is worked on, as far as the request shows it: type hints on the repository, and the form
of the body on what the function returns. No style suits all requests."""

import ast
import itertools
from dataclasses import dataclass

from simulator.tasks.sampling import REPOS, UserTask


@dataclass(frozen=True)
class Style:
    """The style in which one function is written."""

    hints: bool  # type hints in the signature
    one_liner: bool  # a body of one return

    @property
    def opposite(self) -> "Style":
        return Style(hints=not self.hints, one_liner=not self.one_liner)


STYLES = tuple(Style(hints, one_liner) for hints, one_liner in itertools.product((True, False), repeat=2))


@dataclass(frozen=True)
class Taste:
    """The team's taste: the repositories with type hints, and the return types of functions of one line.

    Those of other repositories have none, and other functions are written out as loops."""

    hinted: frozenset[str] = frozenset(REPOS)
    one_line: frozenset[str] = frozenset({"int", "str"})

    def style(self, task: UserTask) -> Style:
        return Style(hints=task.repo in self.hinted, one_liner=task.template.returns in self.one_line)


SHIFTED = Taste(hinted=frozenset())


@dataclass(frozen=True)
class SessionQuality:
    """The ground truth of a finished session. `mismatches` counts the parts of the taste that the code fails."""

    syntax_ok: bool
    tests_pass: bool
    mismatches: int

    @property
    def in_taste(self) -> bool:
        return self.mismatches == 0

    @property
    def good(self) -> bool:
        return self.tests_pass and self.in_taste


def parses(code: str) -> bool:
    try:
        ast.parse(code)
    except (SyntaxError, ValueError):
        return False
    return True


def judge_write(code: str, tests_pass: bool, liked: Style) -> SessionQuality:
    lines = code.split("\n")
    hints = "->" in lines[0]
    one_liner = len(lines) == 2 and lines[1].startswith("    return")
    padded = any(line.lstrip().startswith("#") for line in lines)  # the team's code speaks for itself
    mismatches = int(hints != liked.hints) + int(one_liner != liked.one_liner or padded)
    return SessionQuality(syntax_ok=parses(code), tests_pass=tests_pass, mismatches=mismatches)


def judge_fix(code: str, tests_pass: bool, done: bool) -> SessionQuality:
    """Judge a fix, which counts only when the agent itself said that it was done."""
    return SessionQuality(syntax_ok=parses(code), tests_pass=tests_pass and done, mismatches=0)


def wanted(task: UserTask, taste: Taste) -> str:
    """Return what the user would have written."""
    style = taste.style(task)
    return task.solution(hints=style.hints, one_liner=style.one_liner)
