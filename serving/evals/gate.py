"""The evaluation gate: refuse a candidate, hold it for a person, or let it pass, and say why.

refuse   shown to be worse than the live version, over all cases and not within the margin, or in a group of them
hold     some case could not run, or the cases cannot tell: too few of them for the margin, as a rule
pass     shown to be no worse than by the margin; for one of 5% that takes 31 cases at least, all alike
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from serving.evals.cases import Suite
from serving.evals.comparison import Difference, Pair, by_group, cases_needed, difference, paired, power
from serving.evals.run import Answer, CaseResult, Limits, run_suite, unscored

_NAMED = 5  # cases, in a text


@dataclass(frozen=True)
class Bounds:
    """`margin`: by which part of all cases, as they are weighted, a candidate may be worse. `alpha`: how often one that
    is worse by more may pass; and how often one that is as good may look worse in the whole, and as often in any of the
    groups. `power`: how often enough cases let one pass that is as good."""

    margin: float = 0.05
    alpha: float = 0.05
    power: float = 0.8


@dataclass(frozen=True)
class Verdict:
    """`unscored`: the cases that could not run, and why, by `candidate: name` or `live: name`. `lost`: that the live
    version does and the candidate does not, the weightiest first."""

    action: Literal["refuse", "hold", "pass"]
    why: str
    figures: Mapping[str, float] = field(default_factory=dict)
    unscored: Mapping[str, str] = field(default_factory=dict)
    lost: Sequence[str] = ()


async def evaluate(suite: Suite, candidate: Answer, live: Answer, limits: Limits, bounds: Bounds) -> Verdict:
    """What a gate asks. Both versions answer at the same time, so that what else happens meets both; each has half of
    the requests."""
    share = replace(limits, concurrency=max(1, limits.concurrency // 2))
    return judge(*await asyncio.gather(run_suite(suite, candidate, share), run_suite(suite, live, share)), bounds)


def judge(candidate: Sequence[CaseResult], live: Sequence[CaseResult], bounds: Bounds) -> Verdict:
    """Raises ValueError when the sides were asked different cases."""
    pairs = paired(candidate, live)
    missing = {
        f"{side}: {name}": why
        for side, ran in (("candidate", candidate), ("live", live))
        for name, why in unscored(ran).items()
    }
    if not pairs:
        return Verdict("hold", f"no case ran on both sides: {_some(missing)}", {"unscored": len(missing)}, missing)
    found = difference(pairs, bounds.alpha)
    action, why = _decided(found, _forgotten(pairs, bounds), missing, bounds)
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
    return Verdict(action, why, figures, missing, _lost(pairs))


def _decided(
    found: Difference, forgotten: Mapping[str, Difference], missing: Mapping[str, str], bounds: Bounds
) -> tuple[Literal["refuse", "hold", "pass"], str]:
    said = f"{found.candidate:.1%} of {found.cases} cases right against {found.live:.1%}, {_within(found)}"
    if found.high < 0 and found.low <= -bounds.margin:
        return "refuse", f"worse: {said}"
    if forgotten:
        worse = ", ".join(f"{name!r} ({_within(group)})" for name, group in forgotten.items())
        return "refuse", f"worse in group {worse}; in all {said}"
    if missing:
        return "hold", f"{len(missing)} answers could not be had or checked ({_some(missing)}); of the others {said}"
    if found.low > -bounds.margin:
        return "pass", f"no worse by {bounds.margin:.1%}: {said}"
    chance = power(found, bounds.margin, bounds.alpha)
    needed = cases_needed(found.spread, bounds.margin, bounds.alpha, bounds.power)
    return "hold", (
        f"not shown to be no worse by {bounds.margin:.1%}: {said}; of an equal one these cases show it in {chance:.0%} "
        f"of trials, {needed} would in {bounds.power:.0%}"
    )


def _forgotten(pairs: Sequence[Pair], bounds: Bounds) -> dict[str, Difference]:
    """Groups in which it is shown to be worse. One alone is the whole, and has been judged."""
    groups = by_group(pairs, bounds.alpha)
    return {name: found for name, found in groups.items() if found.high < 0} if len(groups) > 1 else {}


def _lost(pairs: Sequence[Pair]) -> list[str]:
    lost = [pair for pair in pairs if pair.candidate < pair.live]
    return [pair.name for pair in sorted(lost, key=lambda pair: -pair.weight)]


def _within(found: Difference) -> str:
    return f"{found.estimate:+.1%}, within [{found.low:+.1%}, {found.high:+.1%}]"


def _some(missing: Mapping[str, str]) -> str:
    named = [f"{name}: {why}" for name, why in list(missing.items())[:_NAMED]]
    return "; ".join(named) + (f"; and {len(missing) - _NAMED} more" if len(missing) > _NAMED else "")
