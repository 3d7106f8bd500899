"""Tests of paired differences: the same seeds by two ways."""

import statistics
from collections.abc import Mapping, Sequence

import numpy as np

DRAWS = 20_000
# Student's t, two-sided, by degrees of freedom from 1 on.
_T_95 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131)


def likelihood_of_chance(differences: np.ndarray, seed: int = 0) -> float:
    """Return the one-sided p that the mean is below zero by the luck of signs only (a randomisation test)."""
    rng = np.random.default_rng(seed)
    flipped = (rng.integers(0, 2, (DRAWS, len(differences))) * 2 - 1) * differences
    return float((1 + (flipped.mean(1) <= differences.mean()).sum()) / (DRAWS + 1))


def holm(found: Mapping[str, float]) -> dict[str, float]:
    """Return the p of each when all are looked at together (Holm 1979)."""
    adjusted, largest = {}, 0.0
    for rank, (name, p) in enumerate(sorted(found.items(), key=lambda item: item[1])):
        largest = max(largest, min(1.0, (len(found) - rank) * p))
        adjusted[name] = largest
    return adjusted


def interval(differences: np.ndarray, seed: int = 0) -> tuple[float, float]:
    """Return the 95 % interval of the mean, by the bootstrap."""
    rng = np.random.default_rng(seed)
    means = differences[rng.integers(0, len(differences), (DRAWS, len(differences)))].mean(1)
    return float(np.quantile(means, 0.025)), float(np.quantile(means, 0.975))


def mean_and_reach(values: Sequence[float]) -> tuple[float, float]:
    """Return (mean, half of its 95 % interval) by Student's t, which is honest about few values."""
    if len(values) < 2:
        return statistics.fmean(values), float("inf")
    t = _T_95[min(len(values) - 1, len(_T_95)) - 1]
    return statistics.fmean(values), t * statistics.stdev(values) / len(values) ** 0.5
