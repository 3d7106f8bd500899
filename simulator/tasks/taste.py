"""The taste of the simulated team, and the truth about an answer: neither is told to the service."""

import ast
from dataclasses import dataclass

from simulator.tasks.sampling import Task


@dataclass(frozen=True)
class Taste:
    """One taste for the whole team."""

    hints: bool = True  # type hints in the signature
    one_liner: bool = True  # a body of one return


SHIFTED = Taste(hints=False)


@dataclass(frozen=True)
class Quality:
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


def judge_write(code: str, tests_pass: bool, taste: Taste) -> Quality:
    lines = code.split("\n")
    hints = "->" in lines[0]
    one_liner = len(lines) == 2 and lines[1].startswith("    return")
    mismatches = int(hints != taste.hints) + int(one_liner != taste.one_liner)
    return Quality(syntax_ok=parses(code), tests_pass=tests_pass, mismatches=mismatches)


def judge_fix(code: str, tests_pass: bool, done: bool) -> Quality:
    """Judge a fix, which counts only when the agent itself said that it was done."""
    return Quality(syntax_ok=parses(code), tests_pass=tests_pass and done, mismatches=0)


def wanted(task: Task, taste: Taste) -> str:
    """Return what the user would have written."""
    return task.solution(hints=taste.hints, one_liner=taste.one_liner)
