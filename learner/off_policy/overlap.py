"""Logged turns with their weights under a candidate, and whether they can tell anything about it.

A turn's weight is w = pi(answer) / mu(answer), the candidate's probability over that of the policy that answered. Turns
tell something about a candidate only if both give the same answers: when few turns carry most of the weight, or when
the mean weight is not 1 as it must be, an interval would look fine and be wrong. It is refused then.

Legend: N turns, G clusters (users, or sessions without a user), whose turns resemble each other."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from learner.off_policy.jackknife import Floats, JackknifeEstimate, Sums, estimate, summed

MIN_EFFECTIVE = 30.0
"""Fewest clusters' worth of evidence for which an interval is stated; none of them has a fifth of the weight then."""
MEAN_CONFIDENCE = 0.999
"""With it the mean weight must be shown to differ from 1 before that is held against the turns."""
_LARGEST = 500.0  # of log-ratios: exp of more than 709 is no float64


@dataclass(frozen=True)
class LoggedTurns:
    """The logged turns of an evaluation.

    `log_ratio_N`: summed over the turn's sampled tokens, candidate less behaviour; -inf where the candidate would never
    have given the answer. `value_N`: the reward predicted from what was known before the answer, and from other users'
    turns; absent: 0."""

    log_ratio_N: Floats
    reward_N: Floats
    cluster_N: NDArray[np.int64]
    value_N: Floats | None = None

    @classmethod
    def of(
        cls,
        log_ratios: ArrayLike,
        rewards: ArrayLike,
        clusters: Sequence[str] | NDArray[np.int64],
        values: ArrayLike | None = None,
    ) -> "LoggedTurns":
        """Make turns from columns. Raises ValueError naming what differs in length."""
        columns = {"log_ratios": log_ratios, "rewards": rewards, "values": values}
        arrays = {name: np.asarray(c, dtype=np.float64) for name, c in columns.items() if c is not None}
        clusters_N = np.unique(np.asarray(clusters), return_inverse=True)[1].astype(np.int64)
        for name, array in arrays.items():
            if array.shape != clusters_N.shape:
                raise ValueError(f"{name}: {array.shape} for {clusters_N.shape} turns")
        return cls(arrays["log_ratios"], arrays["rewards"], clusters_N, arrays.get("values"))

    def sums(self, **columns_N: Floats) -> Sums:
        return summed(self.cluster_N, columns_N)


@dataclass(frozen=True)
class Overlap:
    """The overlap of logged turns with a candidate.

    `effective`: of turns, (sum w)² / sum w² (Kish 1965); `effective_clusters`: the same of clusters' total weights.
    `refused` says why no interval would be honest."""

    turns: int
    clusters: int
    effective: float
    effective_clusters: float
    mean_weight: JackknifeEstimate | None
    refused: str | None


def kish(weights: Floats) -> float:
    """Return how many equally weighted items these are worth; 0 for none."""
    highest = weights.max(initial=0.0)
    if highest == 0:
        return 0.0
    relative = weights / highest  # squares of very small ones would be 0
    return float(relative.sum() ** 2 / (relative**2).sum())


def overlap(turns: LoggedTurns, min_effective: float = MIN_EFFECTIVE) -> Overlap:
    unusable = _unusable(turns)
    clusters = int(turns.cluster_N.max()) + 1 if len(turns.cluster_N) else 0
    if unusable is not None:
        return Overlap(len(turns.cluster_N), clusters, 0.0, 0.0, None, unusable)
    highest = float(turns.log_ratio_N.max())
    relative_N = np.exp(turns.log_ratio_N - highest)  # no overflow; shares and Kish do not care for the scale
    relative_G = turns.sums(weight=relative_N)["weight"]
    worth, even = kish(relative_G), kish(turns.sums(turns=np.ones_like(relative_N))["turns"])
    mean_weight = None
    if highest > _LARGEST:
        refused: str | None = f"not enough overlap: one answer is exp({highest:.0f}) times as likely"
    elif worth < min_effective:
        refused = f"not enough overlap: {len(turns.cluster_N)} turns are worth {worth:.1f} users, not {min_effective:g}"
    elif even < min_effective:
        refused = f"too few users: {len(turns.cluster_N)} turns are those of {even:.1f} users, not {min_effective:g}"
    else:
        mean_weight = _mean_weight(turns, worth)
        apart = not mean_weight.low <= 1 <= mean_weight.high
        refused = f"not enough overlap: the mean weight is {mean_weight.value:.3g}, not 1" if apart else None
    return Overlap(len(turns.cluster_N), clusters, kish(relative_N), worth, mean_weight, refused)


def _mean_weight(turns: LoggedTurns, worth: float) -> JackknifeEstimate:
    sums = turns.sums(turns=np.ones_like(turns.reward_N), weight=np.exp(turns.log_ratio_N))
    return estimate(sums, lambda s: s["weight"] / s["turns"], worth - 1, MEAN_CONFIDENCE)


def _unusable(turns: LoggedTurns) -> str | None:
    """Return why no weights can be computed; None when they can.

    Turns are never left out here: which ones lack a number may not be chance."""
    if not len(turns.reward_N):
        return "no turns"
    ratios_N = turns.log_ratio_N
    for what, wrong_N in (
        ("log-ratio", np.isnan(ratios_N) | (ratios_N == math.inf)),
        ("reward", ~np.isfinite(turns.reward_N)),
        ("prediction", ~np.isfinite(0.0 if turns.value_N is None else turns.value_N)),
    ):
        if wrong_N.any():
            return f"{wrong_N.sum()} of {len(wrong_N)} turns have no finite {what}, the first at {wrong_N.argmax()}"
    if ratios_N.max() == -math.inf:
        return "not enough overlap: the candidate would have said none of it"
    if np.ptp(turns.reward_N) == 0:
        return f"all {len(turns.reward_N)} rewards are {turns.reward_N[0]:g}: they tell no answer from another"
    return None
