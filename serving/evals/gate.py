"""The evaluation gate: refuse a candidate, hold it for a person, or let it pass, and say why.

refuse   shown to be worse than the live version: in a group, or over all cases and perhaps by more than the margin
hold     some case could not run; or half of a group is lost, in too few cases to show it; or the cases cannot tell,
         mostly because they are too few for the margin
pass     shown not to be worse by more than the margin; for one of 5% that takes at least 31 cases, all with equal
         scores; groups that are too small to refuse anything are named
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

from serving.evals.cases import Suite
from serving.evals.comparison import Difference, Pair, by_group, cases_needed, difference, paired, power
from serving.evals.run import Answerer, CaseResult, Solver, SuiteLimits, ignore, run_suite, unscored

_NAMED = 5  # cases or groups, in a text
_HALF = 0.5  # of a group, lost on balance: nobody would call it the same, however few its cases are


@dataclass(frozen=True)
class GateBounds:
    """The bounds of the gate.

    `margin`: by which part of all cases, as they are weighted, a candidate may be worse. `alpha`: how often one that is
    worse by more may pass; and how often one that is as good may look worse in the whole, and as often in any of the
    groups. `power`: how often enough cases let one pass that is as good."""

    margin: float = 0.05
    alpha: float = 0.05
    power: float = 0.8


@dataclass(frozen=True)
class GateDecision:
    """The decision of the gate.

    `unscored`: the cases that could not run, and why, by `candidate: name` or `live: name`. `lost`: cases that the live
    version solves and the candidate does not, the weightiest first. `tasks`: what became of each task, by names as
    `unscored` has them."""

    action: Literal["refuse", "hold", "pass"]
    why: str
    figures: Mapping[str, float] = field(default_factory=dict)
    unscored: Mapping[str, str] = field(default_factory=dict)
    lost: Sequence[str] = ()
    tasks: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


async def evaluate(
    suite: Suite,
    candidate: Answerer,
    live: Answerer,
    limits: SuiteLimits,
    bounds: GateBounds,
    solvers: tuple[Solver | None, Solver | None] = (None, None),
    on_result: Callable[[CaseResult], None] = ignore,
) -> GateDecision:
    """Run the suite on both versions and judge. `solvers`: who works on tasks, for either.

    Both answer at the same time, so that disturbances affect both; each has half of the requests."""
    share = replace(limits, concurrency=max(1, limits.concurrency // 2))
    one, other = await asyncio.gather(
        run_suite(suite, candidate, share, solvers[0], on_result), run_suite(suite, live, share, solvers[1], on_result)
    )
    return judge(one, other, bounds)


def judge(candidate: Sequence[CaseResult], live: Sequence[CaseResult], bounds: GateBounds) -> GateDecision:
    """Judge the results. Raises ValueError when the sides were asked different cases."""
    pairs, sides = paired(candidate, live), (("candidate", candidate), ("live", live))
    missing = {f"{side}: {name}": why for side, ran in sides for name, why in unscored(ran).items()}
    tasks = {f"{side}: {name}": told for side, ran in sides for name, told in worked_on(ran).items()}
    if not pairs:
        why = f"no case ran on both sides: {_some(missing)}"
        return GateDecision("hold", why, {"unscored": len(missing)}, missing, tasks=tasks)
    found = difference(pairs, bounds.alpha)
    groups, lost = _groups(pairs, bounds), _lost(pairs)
    action, why = _decided(found, groups, missing, bounds)
    why += _beyond_proof(pairs, groups, bounds) if action != "refuse" else ""
    why += f"; lost: {_first(_with_reasons(lost, candidate))}" if lost and action != "pass" else ""
    figures = {
        "cases": found.cases,
        "effective_cases": found.effective,
        "unscored": len(missing),
        "candidate": found.candidate,
        "live": found.live,
        "difference": found.estimate,
        "low": found.low,
        "high": found.high,
        "margin": bounds.margin,
        "power": power(found, bounds.margin, bounds.alpha),
        "cases_needed": cases_needed(found.spread, bounds.margin, bounds.alpha, bounds.power),
    }
    return GateDecision(action, why, figures, missing, lost, tasks)


def worked_on(results: Sequence[CaseResult]) -> dict[str, dict[str, Any]]:
    """Return what became of each task that was worked on, by its case: what it used, and why it was lost."""
    return {
        result.case.name: {**asdict(result.worked), "right": result.score == 1}
        | ({"why": result.why} if result.why else {})
        for result in results
        if result.worked is not None
    }


def _decided(
    found: Difference, groups: Mapping[str, Difference], missing: Mapping[str, str], bounds: GateBounds
) -> tuple[Literal["refuse", "hold", "pass"], str]:
    said = f"{found.candidate:.1%} of {found.cases} cases right against {found.live:.1%}, {_within(found)}"
    if found.high < 0 and found.low <= -bounds.margin:
        return "refuse", f"worse: {said}"
    if forgotten := {name: group for name, group in groups.items() if group.high < 0}:
        return "refuse", f"worse in group {_each(forgotten)}; in all {said}"
    if missing:
        return "hold", f"{len(missing)} answers could not be had or checked ({_some(missing)}); of the others {said}"
    if halved := {name: group for name, group in groups.items() if group.estimate <= -_HALF}:
        return "hold", f"half or more is lost of group {_each(halved)}, too few cases to be sure; in all {said}"
    if found.low > -bounds.margin:
        return "pass", f"no worse by {bounds.margin:.1%}: {said}"
    chance = power(found, bounds.margin, bounds.alpha)
    needed = cases_needed(found.spread, bounds.margin, bounds.alpha, bounds.power)
    return "hold", (
        f"not shown to be no worse by {bounds.margin:.1%}: {said}; of an equal one these cases show it in {chance:.0%} "
        f"of trials, {needed} would in {bounds.power:.0%}"
    )


def _groups(pairs: Sequence[Pair], bounds: GateBounds) -> Mapping[str, Difference]:
    """One alone is the whole, and has been judged."""
    groups = by_group(pairs, bounds.alpha)
    return groups if len(groups) > 1 else {}


def _beyond_proof(pairs: Sequence[Pair], groups: Mapping[str, Difference], bounds: GateBounds) -> str:
    """Name the groups too small to prove anything.

    They could not be shown to be worse even if the live version solved every case and the candidate none."""
    all_lost = _groups([replace(pair, candidate=0.0, live=1.0) for pair in pairs], bounds)
    small = [name for name, worst in all_lost.items() if worst.high >= 0]
    named = _first([f"{name!r} ({groups[name].cases}, {groups[name].estimate:+.1%})" for name in small])
    return f"; too few cases to refuse it by, were all of them lost: group {named}" if small else ""


def _lost(pairs: Sequence[Pair]) -> list[str]:
    lost = [pair for pair in pairs if pair.candidate < pair.live]
    return [pair.name for pair in sorted(lost, key=lambda pair: -pair.weight)]


def _with_reasons(lost: Sequence[str], candidate: Sequence[CaseResult]) -> list[str]:
    """Name the lost cases; of tasks it is known by what they were lost."""
    reasons = {result.case.name: result.why for result in candidate if result.why}
    return [f"{name} ({reasons[name]})" if name in reasons else name for name in lost]


def _within(found: Difference) -> str:
    return f"{found.estimate:+.1%}, within [{found.low:+.1%}, {found.high:+.1%}]"


def _each(groups: Mapping[str, Difference]) -> str:
    return ", ".join(f"{name!r} ({_within(group)})" for name, group in groups.items())


def _some(missing: Mapping[str, str]) -> str:
    return _first([f"{name}: {why}" for name, why in missing.items()], "; ")


def _first(names: Sequence[str], between: str = ", ") -> str:
    more = [f"and {len(names) - _NAMED} more"] if len(names) > _NAMED else []
    return between.join([*names[:_NAMED], *more])
