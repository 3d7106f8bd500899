"""Running a suite: each case once, several at a time, within a budget of time.

A case that cannot run has no score and says why; it is never left out, and never counts as right or as wrong.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from serving.evals import command
from serving.evals.cases import CannotRun, Case, Suite
from serving.evals.checkers import Command

Answerer = Callable[[Case], Awaitable[str]]
"""Returns a version's answer to a case. Raises CannotRun when there is none."""


@dataclass(frozen=True)
class Limits:
    """Time for the whole suite, requests under way at once, and whether a suite's commands may run here."""

    budget_s: float = 600.0
    concurrency: int = 8
    allow_commands: bool = False


@dataclass(frozen=True)
class CaseResult:
    """`score`: 1 right, 0 wrong, None when it could not run; `why`: then."""

    case: Case
    score: float | None
    why: str = ""


async def run_suite(suite: Suite, answer: Answerer, limits: Limits) -> list[CaseResult]:
    """Ask every case; return the results in the order of the suite."""
    free = asyncio.Semaphore(limits.concurrency)
    until_s = asyncio.get_running_loop().time() + limits.budget_s

    async def run(case: Case) -> CaseResult:
        try:
            async with asyncio.timeout_at(until_s), free:
                return CaseResult(case, float(await _holds(suite, case, await answer(case), limits)))
        except CannotRun as error:
            return CaseResult(case, None, str(error))
        except TimeoutError:
            return CaseResult(case, None, f"the suite's {limits.budget_s:g} s were over")
        except OSError as error:  # of this machine: a full disk, no more files
            return CaseResult(case, None, f"this machine failed, not the version: {error!r}")

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(run(case)) for case in suite.cases]
    return [task.result() for task in tasks]


async def _holds(suite: Suite, case: Case, answer: str, limits: Limits) -> bool:
    checker = case.checker
    if not isinstance(checker, Command):
        return checker.holds(answer)
    if not limits.allow_commands:
        raise CannotRun("its checker is a command, and these are not allowed")
    return await command.accepts(checker.within(suite.directories[case.name]), answer, checker.timeout_s)


def unscored(results: Sequence[CaseResult]) -> dict[str, str]:
    """Return why cases could not run, by case."""
    return {result.case.name: result.why for result in results if result.score is None}
