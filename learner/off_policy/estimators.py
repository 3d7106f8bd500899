"""The estimators of the candidate's mean reward, or of that less the logged policy's, each with its interval.

snips sum w r / sum w (Hesterberg 1995; Swaminathan & Joachims 2015, "The Self-Normalized Estimator for Counterfactual
Learning"): unlike plain importance sampling its verdict does not change when all rewards are shifted. clipped Weights
are cut at c = sqrt(N) (Ionides 2008, "Truncated Importance Sampling"), so that no turn decides alone. What is cut off
may have earned anything between the least and the greatest reward, and the interval has room for both (the outer
intervals of Bottou et al. 2013, JMLR 14, "Counterfactual Reasoning and Learning Systems", reaching as far beyond as in
Imbens & Manski 2004); the value assumes that it earned as the rest did. If nothing is cut, it is snips. dr mean v + sum
w (r - q) / sum w: predictions v of what the candidate earns, corrected by how far the rewards are from the predictions
q (Dudík, Langford & Li 2011, arXiv 1103.4601; weights that sum to 1: Thomas & Brunskill 2016, arXiv 1604.00923). Poor
predictions cost width and nothing else. Those of `predictions` know the situation, not the answer: then v = q.

They are written here because no library that has them is maintained: obp, vw-estimators and scope-rl had their last
releases in 2023."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from learner.off_policy.jackknife import Estimate, Floats, Statistic, Sums, measure, quantile_beside, t_quantile
from learner.off_policy.overlap import MIN_EFFECTIVE, LoggedTurns, Overlap, overlap


@dataclass(frozen=True)
class OffPolicy:
    """The result of an evaluation.

    `values`: the candidate's mean reward by estimator; `gains`: the same less what was earned on these turns. Both are
    empty when `overlap.refused` says why."""

    overlap: Overlap
    values: Mapping[str, Estimate] = field(default_factory=dict)
    gains: Mapping[str, Estimate] = field(default_factory=dict)


def off_policy(
    turns: LoggedTurns,
    *,
    confidence: float = 0.95,
    reward_range: tuple[float, float] | None = None,
    min_effective: float = MIN_EFFECTIVE,
) -> OffPolicy:
    """Evaluate the candidate. `reward_range`: the least and greatest possible reward; None: those that were seen."""
    found = overlap(turns, min_effective)
    if found.refused is not None:
        return OffPolicy(found)
    least, greatest = reward_range or (float(turns.reward_N.min()), float(turns.reward_N.max()))
    bounds = {
        "snips": (_snips, _snips, _snips),
        "clipped": (_clipped, _clipped_with(least), _clipped_with(greatest)),
        "dr": (_doubly_robust, _doubly_robust, _doubly_robust),
    }
    if turns.value_N is None:
        del bounds["dr"]
    sums, freedom = _sums(turns), found.effective_clusters - 1

    def enclosed(statistics: tuple[Statistic, ...], less: Statistic) -> Estimate:
        (value, _), (least, below), (most, above) = (measure(sums, _difference(of, less)) for of in statistics)
        error = max(below, above)
        room = (most - least) / error if error else math.inf
        reach = t_quantile(quantile_beside(room, confidence), freedom)
        return Estimate(value, least - reach * below, most + reach * above)

    return OffPolicy(
        found,
        values={name: enclosed(statistics, _nothing) for name, statistics in bounds.items()},
        gains={name: enclosed(statistics, _earned) for name, statistics in bounds.items()},
    )


def _sums(turns: LoggedTurns) -> Sums:
    weight_N, reward_N = np.exp(turns.log_ratio_N), turns.reward_N
    clipped_N = np.minimum(weight_N, math.sqrt(len(weight_N)))
    value_N = np.zeros_like(reward_N) if turns.value_N is None else turns.value_N
    predicted_N = value_N if turns.predicted_N is None else turns.predicted_N
    return turns.sums(
        turns=np.ones_like(reward_N),
        reward=reward_N,
        weight=weight_N,
        weighted=weight_N * reward_N,
        clipped=clipped_N,
        clipped_weighted=clipped_N * reward_N,
        value=value_N,
        mended=weight_N * (reward_N - predicted_N),
    )


def _difference(one: Statistic, other: Statistic) -> Statistic:
    return lambda sums: one(sums) - other(sums)


def _nothing(sums: Sums) -> Floats:
    return np.zeros_like(sums["turns"])


def _earned(sums: Sums) -> Floats:
    return sums["reward"] / sums["turns"]


def _snips(sums: Sums) -> Floats:
    return sums["weighted"] / sums["weight"]


def _doubly_robust(sums: Sums) -> Floats:
    return sums["value"] / sums["turns"] + sums["mended"] / sums["weight"]


def _clipped(sums: Sums) -> Floats:
    return sums["clipped_weighted"] / sums["clipped"]


def _clipped_with(rest: float) -> Statistic:
    """Return the statistic in which the weight that was cut off earned `rest`."""
    return lambda sums: (sums["clipped_weighted"] + rest * (sums["weight"] - sums["clipped"])) / sums["weight"]
