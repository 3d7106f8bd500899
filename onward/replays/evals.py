"""Running a suite on a version, and comparing it with another version that it may replace."""

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from rich.text import Text

from core.errors import ConfigError
from core.ids import PolicyRef
from onward.output import console, show_json
from onward.replays.provenance import VersionRange, provenance
from onward.wiring.evals.building import build_task_cases
from serving.evals.cases import Suite, load_suite
from serving.evals.endpoint import EvalEndpoint
from serving.evals.gate import GateBounds, GateDecision, evaluate, worked_on
from serving.evals.run import CaseResult, Solver, SuiteLimits, run_suite

if TYPE_CHECKING:
    from environments.cases.trial import Tried
    from onward.wiring.evals.task_cases import TaskCases

Target = tuple[str, str]
"""An endpoint's URL, and the model's name there."""
KEPT = Path("build/environments")
"""Where images of tasks are kept, and what sandboxes share."""
_OF_NOBODY = {"x-turn-type": "side", "x-onward-learn": "false"}


def run(
    directory: Path,
    candidate: Target,
    live: Target | None,
    limits: tuple[float, int, bool],
    margin: float,
    key: str | None,
    *,
    as_json: bool = False,
    images: Mapping[str, str] | None = None,
    kept: Path = KEPT,
) -> bool:
    """Print the results; return whether every case ran and, in a comparison, whether the gate passes the version.

    `limits`: see `SuiteLimits`; `images`: what stands for the images of tasks that no engine can pull. Raises
    ConfigError naming the option, or the file and the case at fault."""
    check_options(margin, *limits[:2])
    suite, to = load_suite(directory), console()
    tasks = build_task_cases(suite, kept, images or {}, allowed=limits[2], asked_by=str(directory))
    asking = _Asking(suite, SuiteLimits(*limits), key, tasks)
    if live is None:
        results, origin = asyncio.run(asking.alone(candidate))
        show_json(_figures(suite, results) | origin) if as_json else _show(to, results)
        return all(result.score is not None for result in results)
    verdict, origin = asyncio.run(asking.beside(candidate, live, GateBounds(margin=margin)))
    told = {"suite": suite.digest, **asdict(verdict), **origin}
    show_json(told) if as_json else _tell(to, verdict)
    return verdict.action == "pass"


def check_options(margin: float, budget_s: float, concurrency: int, reward_margin: float = 1.0) -> None:
    """Check the options. Raises ConfigError naming the option."""
    for option, holds, wanted in (
        ("--margin", 0 < margin < 1, "more than 0 and less than 1"),
        ("--budget-s", budget_s > 0, "more than 0"),
        ("--concurrency", concurrency >= 1, "1 or more"),
        ("--reward-margin", reward_margin > 0, "more than 0"),
    ):
        if not holds:
            raise ConfigError(f"{option}: want {wanted}")


class _Asking:
    """Asks endpoints a suite."""

    def __init__(self, suite: Suite, limits: SuiteLimits, key: str | None, tasks: "TaskCases | None") -> None:
        self._suite, self._limits, self._key, self._tasks = suite, limits, key, tasks

    async def alone(self, target: Target) -> tuple[list[CaseResult], dict[str, Any]]:
        async with AsyncExitStack() as stack:
            ((endpoint, solve),) = await self._sides(stack, target)
            with _progress(self._suite, 1) as on_result:
                results = await run_suite(self._suite, endpoint, self._limits, solve, on_result)
            return results, {"provenance": await _origin(self._suite, target, endpoint)}

    async def beside(self, candidate: Target, live: Target, bounds: GateBounds) -> tuple[GateDecision, dict[str, Any]]:
        async with AsyncExitStack() as stack:
            (one, of_one), (other, of_other) = await self._sides(stack, candidate, live)
            with _progress(self._suite, 2) as on_result:
                solvers = (of_one, of_other)
                decision = await evaluate(self._suite, one, other, self._limits, bounds, solvers, on_result)
            origins = [await _origin(self._suite, *side) for side in ((candidate, one), (live, other))]
            return decision, {"provenance": origins[0], "live_provenance": origins[1]}

    async def _sides(self, stack: AsyncExitStack, *targets: Target) -> list[tuple[EvalEndpoint, Solver | None]]:
        """Open the endpoints, each with what works on tasks there."""
        endpoints = [await stack.enter_async_context(aclosing(EvalEndpoint(*each, self._key))) for each in targets]
        if self._tasks is None:
            return [(endpoint, None) for endpoint in endpoints]
        from environments.harness.harness import Endpoint as Asked

        solver_at = await stack.enter_async_context(self._tasks.at_endpoints(self._limits.concurrency))
        sides: list[tuple[EvalEndpoint, Solver | None]] = []
        for endpoint, (url, model) in zip(endpoints, targets, strict=True):
            asked = Asked(url, self._key, model, _OF_NOBODY)
            sides.append((endpoint, solver_at(asked, _noting(endpoint))))
        return sides


def _noting(endpoint: EvalEndpoint) -> "Callable[[Tried], None]":
    """Note which versions worked on tasks, as of those that answered."""

    def note(tried: "Tried") -> None:
        endpoint.versions |= {PolicyRef.parse(str(version)) for version in tried.work.policy_versions}

    return note


@contextmanager
def _progress(suite: Suite, sides: int) -> Iterator[Callable[[CaseResult], None]]:
    """Show how many cases have been asked; on stdout is what is returned."""
    with Progress(console=Console(stderr=True)) as progress:
        bar = progress.add_task("cases", total=sides * len(suite.cases))
        yield lambda result: progress.advance(bar)


async def _origin(suite: Suite, target: Target, endpoint: EvalEndpoint) -> dict[str, Any]:
    """Return where a side's results come from; the seeds are those that cases state."""
    seeds = {case.name: case.seed for case in suite.cases if case.temperature > 0}
    return provenance(target[1], await endpoint.digest(), VersionRange(endpoint.versions), seeds)


def _figures(suite: Suite, results: Sequence[CaseResult]) -> dict[str, Any]:
    tasks = worked_on(results)
    cases = {
        result.case.name: {"group": result.case.group, "weight": result.case.weight, "score": result.score}
        | ({"why": result.why} if result.score is None else {})
        | tasks.get(result.case.name, {})
        for result in results
    }
    return {"suite": suite.digest, "right": _right(results), "cases": cases}


def _right(results: Sequence[CaseResult]) -> float | None:
    """Share of the cases that ran, as they are weighted."""
    ran = [(result.case.weight, result.score) for result in results if result.score is not None]
    return sum(weight * score for weight, score in ran) / sum(weight for weight, _ in ran) if ran else None


def _show(to: Console, results: Sequence[CaseResult]) -> None:
    table = Table("group", "cases", "right", "could not run")
    for group in sorted({result.case.group for result in results}):
        _add(table, group, [result for result in results if result.case.group == group])
    _add(table, "together", results)
    to.print(table)
    lines = _worked(worked_on(results))
    for result in results:
        if result.score is None:
            lines.append(f"could not run: {result.case.name}: {result.why}")
        elif result.score < 1:
            lines.append(f"wrong: {result.case.name}" + (f": {result.why}" if result.why else ""))
    _say(to, lines)


def _add(table: Table, name: str, results: Sequence[CaseResult]) -> None:
    right, missing = _right(results), sum(result.score is None for result in results)
    table.add_row(Text(name), str(len(results)), "" if right is None else f"{right:.1%}", str(missing))


def _tell(to: Console, verdict: GateDecision) -> None:
    lines = [f"{verdict.action}: {verdict.why}", *_worked(verdict.tasks)]
    lines += [f"could not run: {name}: {why}" for name, why in verdict.unscored.items()]
    lines += [f"lost: {name}" for name in verdict.lost]
    _say(to, lines)


def _worked(tasks: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Say of each task what was used."""
    return [
        f"worked on: {name}: {each['calls']} calls, {each['tokens']} tokens, {each['seconds']:.1f} s; "
        f"it ended: {each['ending']}"
        for name, each in tasks.items()
    ]


def _say(to: Console, lines: Sequence[str]) -> None:
    for line in lines:
        to.print(line, soft_wrap=True)
