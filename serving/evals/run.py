"""Running a suite: each case once, several at a time, within a budget of time.

A case that cannot run has no score and says why; it is never left out, and never counts as right or as wrong.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Final

from core.records.handling import words_of
from serving.evals import command
from serving.evals.cases import AnyCase, CannotRun, Case, Suite, TaskCase
from serving.evals.checkers import Command
from serving.evals.engine_answers import BeginTalk

_NAMED: Final = 5  # flaws, in words that are recorded with a version
_OF_A_CASE: Final = 0.5  # of the suite's time: one whose tests hang leaves the others as much
_LONGEST: Final = 300  # characters of one
logger = logging.getLogger(__name__)
Answerer = Callable[[Case], Awaitable[str]]
"""Returns a version's answer to a case. Raises CannotRun when there is none."""


@dataclass(frozen=True)
class Worked:
    """What became of a version's work on a task.

    `reward`: what its tests gave. `flaws`: which of the case's rules the files break, in words. `ending`: how the work
    ended: done, budget, context, malformed. `seconds` are those on the critical path."""

    reward: float
    flaws: tuple[str, ...] = ()
    ending: str = "done"
    calls: int = 0
    tokens: int = 0
    seconds: float = 0.0


Solver = Callable[[TaskCase], Awaitable[Worked]]
"""Has a version work on a case's task. Raises CannotRun when what failed was not the version."""
SolverOf = Callable[[BeginTalk, int], Solver]
"""Returns the solver of a version that is talked to like that, and has so many tokens of context."""
OpenTasks = Callable[[int], AbstractAsyncContextManager[SolverOf]]
"""Opens what a suite's tasks are worked on with, so many at once, for one event loop."""


@dataclass(frozen=True)
class SuiteLimits:
    """Time for the whole suite, requests under way at once, and whether a suite's commands may run here.

    One case may take half of the time, and cannot run if it takes longer.

    Tasks are commands: those of their tests, and those that a version calls, in sandboxes."""

    budget_s: float = 600.0
    concurrency: int = 8
    allow_commands: bool = False


@dataclass(frozen=True)
class CaseResult:
    """`score`: 1 right, 0 wrong, None when it could not run.

    `why`: then; and why a task's work is not right, "" of an answer. `worked`: of a task."""

    case: AnyCase
    score: float | None
    why: str = ""
    worked: Worked | None = None


def ignore(result: CaseResult) -> None:
    """Do nothing with a result as it comes."""


async def run_suite(
    suite: Suite,
    answer: Answerer,
    limits: SuiteLimits,
    solve: Solver | None = None,
    on_result: Callable[[CaseResult], None] = ignore,
) -> list[CaseResult]:
    """Ask every case; return the results in the order of the suite. `on_result` is told of each as it comes."""
    free = asyncio.Semaphore(limits.concurrency)
    until_s, most_s = asyncio.get_running_loop().time() + limits.budget_s, _OF_A_CASE * limits.budget_s

    async def run(case: AnyCase) -> CaseResult:
        try:
            async with asyncio.timeout_at(until_s), free, asyncio.timeout(most_s):
                if isinstance(case, TaskCase):
                    return await _solved(case, limits, solve)
                return CaseResult(case, float(await _holds(suite, case, await answer(case), limits)))
        except CannotRun as error:
            return CaseResult(case, None, _printable(str(error)))
        except TimeoutError:
            is_over = asyncio.get_running_loop().time() >= until_s
            took = f"the suite's {limits.budget_s:g} s were over" if is_over else f"it took more than {most_s:g} s"
            return CaseResult(case, None, took)
        except OSError as error:  # of this machine: a full disk, no more files
            return CaseResult(case, None, f"this machine failed, not the version: {error!r}")

    async def told(case: AnyCase) -> CaseResult:
        result = await run(case)
        on_result(result)
        return result

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(told(case)) for case in suite.cases]
    return [task.result() for task in tasks]


async def _holds(suite: Suite, case: Case, answer: str, limits: SuiteLimits) -> bool:
    checker = case.checker
    if not isinstance(checker, Command):
        return checker.holds(answer)
    if not limits.allow_commands:
        raise CannotRun("its checker is a command, and these are not allowed")
    return await command.accepts(checker.within(suite.directories[case.name]), answer, checker.timeout_s)


async def _solved(case: TaskCase, limits: SuiteLimits, solve: Solver | None) -> CaseResult:
    if not limits.allow_commands:
        raise CannotRun("it is a task, which runs commands, and these are not allowed")
    if solve is None:
        raise CannotRun("it is a task, and whoever asks has no sandboxes")
    (worked,) = await asyncio.gather(solve(case), return_exceptions=True)
    if isinstance(worked, CannotRun | TimeoutError | OSError | asyncio.CancelledError):
        raise worked
    if isinstance(worked, BaseException):  # what a version makes our code raise is not known beforehand
        logger.error("case %r could not run", case.name, exc_info=worked)
        raise CannotRun(f"this program failed, not the version: {words_of(worked)}") from worked
    why = _printable(_lost_by(case, worked))
    return CaseResult(case, float(not why), why, worked)


def _lost_by(case: TaskCase, worked: Worked) -> str:
    """Return what a task's work was lost by; "" where it is right. Rules count once the tests are content."""
    if worked.reward < case.at_least:
        return f"its tests give {worked.reward:g}, less than {case.at_least:g} (the work ended: {worked.ending})"
    told = [flaw if len(flaw) <= _LONGEST else f"{flaw[:_LONGEST]}…" for flaw in worked.flaws[:_NAMED]]
    more = len(worked.flaws) - _NAMED
    return "; ".join([*told, f"and {more} more"] if more > 0 else told)


def _printable(words: str) -> str:
    """Return words that any record can hold: names of files may be no text at all."""
    return words.encode(errors="replace").decode()


def unscored(results: Sequence[CaseResult]) -> dict[str, str]:
    """Return why cases could not run, by case."""
    return {result.case.name: result.why for result in results if result.score is None}
