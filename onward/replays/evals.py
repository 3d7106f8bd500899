"""Running a suite on a version, and comparing it with another version that it may replace."""

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack, aclosing
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from core.errors import ConfigError
from onward.replays.provenance import Versions, provenance
from serving.evals.cases import Suite, load_suite
from serving.evals.endpoint import Endpoint
from serving.evals.gate import Bounds, GateDecision, evaluate
from serving.evals.run import CaseResult, Limits, run_suite

Target = tuple[str, str]
"""An endpoint's URL, and the model's name there."""


def run(
    directory: Path,
    candidate: Target,
    live: Target | None,
    limits: tuple[float, int, bool],
    margin: float,
    key: str | None,
    *,
    as_json: bool = False,
) -> bool:
    """Print the results; return whether every case ran and, in a comparison, whether the gate passes the version.

    `limits`: see `Limits`. Raises ConfigError naming the option, or the file and the case at fault."""
    check_options(margin, *limits[:2])
    suite, console = load_suite(directory), Console()
    if live is None:
        results, origin = asyncio.run(_alone(suite, candidate, key, Limits(*limits)))
        console.print_json(data=_figures(suite, results) | origin) if as_json else _show(console, results)
        return all(result.score is not None for result in results)
    verdict, origin = asyncio.run(_beside(suite, candidate, live, key, Limits(*limits), Bounds(margin=margin)))
    told = {"suite": suite.digest, **asdict(verdict), **origin}
    console.print_json(data=told) if as_json else _tell(console, verdict)
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


async def _alone(
    suite: Suite, target: Target, key: str | None, limits: Limits
) -> tuple[list[CaseResult], dict[str, Any]]:
    async with aclosing(Endpoint(*target, key)) as endpoint:
        results = await run_suite(suite, endpoint, limits)
        return results, {"provenance": await _origin(suite, target, endpoint)}


async def _beside(
    suite: Suite, candidate: Target, live: Target, key: str | None, limits: Limits, bounds: Bounds
) -> tuple[GateDecision, dict[str, Any]]:
    async with AsyncExitStack() as stack:
        one, other = [await stack.enter_async_context(aclosing(Endpoint(*t, key))) for t in (candidate, live)]
        decision = await evaluate(suite, one, other, limits, bounds)
        origins = [await _origin(suite, *side) for side in ((candidate, one), (live, other))]
        return decision, {"provenance": origins[0], "live_provenance": origins[1]}


async def _origin(suite: Suite, target: Target, endpoint: Endpoint) -> dict[str, Any]:
    """Return where a side's results come from; the seeds are those that cases state."""
    seeds = {case.name: case.seed for case in suite.cases if case.temperature > 0}
    return provenance(target[1], await endpoint.digest(), Versions(endpoint.versions), seeds)


def _figures(suite: Suite, results: Sequence[CaseResult]) -> dict[str, Any]:
    cases = {
        result.case.name: {"group": result.case.group, "weight": result.case.weight, "score": result.score}
        | ({"why": result.why} if result.score is None else {})
        for result in results
    }
    return {"suite": suite.digest, "right": _right(results), "cases": cases}


def _right(results: Sequence[CaseResult]) -> float | None:
    """Share of the cases that ran, as they are weighted."""
    ran = [(result.case.weight, result.score) for result in results if result.score is not None]
    return sum(weight * score for weight, score in ran) / sum(weight for weight, _ in ran) if ran else None


def _show(console: Console, results: Sequence[CaseResult]) -> None:
    table = Table("group", "cases", "right", "could not run")
    for group in sorted({result.case.group for result in results}):
        _add(table, group, [result for result in results if result.case.group == group])
    _add(table, "together", results)
    console.print(table)
    for result in results:
        if result.score is None:
            console.print(f"could not run: {result.case.name}: {result.why}", markup=False, highlight=False)
        elif result.score < 1:
            console.print(f"wrong: {result.case.name}", markup=False, highlight=False)


def _add(table: Table, name: str, results: Sequence[CaseResult]) -> None:
    right, missing = _right(results), sum(result.score is None for result in results)
    table.add_row(Text(name), str(len(results)), "" if right is None else f"{right:.1%}", str(missing))


def _tell(console: Console, verdict: GateDecision) -> None:
    lines = [f"{verdict.action}: {verdict.why}"]
    lines += [f"could not run: {name}: {why}" for name, why in verdict.unscored.items()]
    lines += [f"lost: {name}" for name in verdict.lost]
    for line in lines:
        console.print(line, markup=False, highlight=False, soft_wrap=True)
