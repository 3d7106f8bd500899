"""The paired comparison of a candidate with the live version: scores on the same cases, so hard cases add no noise.

The mean uses the cases' weights. The error is that of the differences, with two cases added: one without a difference,
and one that counts half for each side (Agresti & Min 2005, "Simple improved confidence intervals for comparing matched
proportions"). So a few cases with equal scores do not prove that both are equal.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from serving.evals.run import CaseResult


@dataclass(frozen=True)
class Difference:
    """A difference of mean scores, candidate less live; each end misses with the `alpha` it was made for.

    `effective`: the number of equally weighted cases that these are worth. `spread`: standard deviation of one case's
    difference."""

    cases: int
    effective: float
    candidate: float
    live: float
    estimate: float
    low: float
    high: float
    spread: float


@dataclass(frozen=True)
class Pair:
    name: str
    group: str
    weight: float
    candidate: float
    live: float


def paired(candidate: Sequence[CaseResult], live: Sequence[CaseResult]) -> list[Pair]:
    """Return the cases that ran on both sides. Raises ValueError when the sides were asked different cases."""
    if [result.case for result in candidate] != [result.case for result in live]:
        raise ValueError("the two sides were not asked the same cases")
    return [
        Pair(one.case.name, one.case.group, one.case.weight, one.score, other.score)
        for one, other in zip(candidate, live, strict=True)
        if one.score is not None and other.score is not None
    ]


def difference(pairs: Sequence[Pair], alpha: float) -> Difference:
    """Return the difference over at least one pair."""
    weights = np.array([pair.weight for pair in pairs])
    gains = np.array([pair.candidate - pair.live for pair in pairs])
    effective = float(weights.sum() ** 2 / (weights**2).sum())
    share = weights / weights.sum() * effective / (effective + 2)  # of the cases; the rest is that of the two
    added = 1 / (effective + 2)
    estimate = float((share * gains).sum())
    two = added**2 * (estimate**2 + ((1 - estimate) ** 2 + (1 + estimate) ** 2) / 2)
    error = math.sqrt(float((share**2 * (gains - estimate) ** 2).sum()) + two)
    reach = NormalDist().inv_cdf(1 - alpha) * error
    return Difference(
        cases=len(pairs),
        effective=effective,
        candidate=float(np.average([pair.candidate for pair in pairs], weights=weights)),
        live=float(np.average([pair.live for pair in pairs], weights=weights)),
        estimate=float(np.average(gains, weights=weights)),
        low=estimate - reach,
        high=estimate + reach,
        spread=error * math.sqrt(effective + 2),
    )


def by_group(pairs: Sequence[Pair], alpha: float) -> Mapping[str, Difference]:
    """`alpha` is that of all of them together (union bound)."""
    groups = sorted({pair.group for pair in pairs})
    return {g: difference([pair for pair in pairs if pair.group == g], alpha / len(groups)) for g in groups}


def power(found: Difference, margin: float, alpha: float) -> float:
    """Return how often so many cases, of such a spread, show an equal candidate to be within `margin`."""
    normal = NormalDist()
    return normal.cdf(margin * math.sqrt(found.effective) / found.spread - normal.inv_cdf(1 - alpha))


def cases_needed(spread: float, margin: float, alpha: float, wanted: float) -> int:
    """Return the number of equally weighted cases for that power."""
    normal = NormalDist()
    return math.ceil(((normal.inv_cdf(1 - alpha) + normal.inv_cdf(wanted)) * spread / margin) ** 2)
