"""Intervals of statistics that are computed from sums over turns in clusters.

Delete one cluster at a time and see how far the result moves (Quenouille 1956, Tukey 1958; by cluster: Bell & McCaffrey
2002, who show that it errs on the wide side where plain linearisation errs on the narrow one). With sums kept by
cluster that is one subtraction for all of them, whatever the statistic.

Legend: N turns, G clusters."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Sums = Mapping[str, Floats]  # by column, of each cluster; or of all clusters, or of all but one
Statistic = Callable[[Sums], Floats]


@dataclass(frozen=True)
class JackknifeEstimate:
    value: float
    low: float
    high: float

    @property
    def width(self) -> float:
        return self.high - self.low


def summed(cluster_N: NDArray[np.int64], columns_N: Sums) -> Sums:
    return {name: np.bincount(cluster_N, column_N).astype(np.float64) for name, column_N in columns_N.items()}


def estimate(sums_G: Sums, statistic: Statistic, freedom: float, confidence: float) -> JackknifeEstimate:
    """Return the statistic with its interval. `freedom`: the degrees of freedom of its error."""
    value, error = measure(sums_G, statistic)
    reach = t_quantile((1 + confidence) / 2, freedom) * error
    return JackknifeEstimate(value, value - reach, value + reach)


def measure(sums_G: Sums, statistic: Statistic) -> tuple[float, float]:
    """Return (value, standard error). `statistic` maps sums, of which there may be many at once."""
    whole = {name: column_G.sum() for name, column_G in sums_G.items()}
    without_G = statistic({name: whole[name] - column_G for name, column_G in sums_G.items()})
    value = float(statistic(whole))
    squared = (len(without_G) - 1) / len(without_G) * float(((without_G - without_G.mean()) ** 2).sum())
    return value, math.sqrt(squared)


def t_quantile(probability: float, freedom: float) -> float:
    """Return a quantile of Student's t, by the expansion of Cornish & Fisher (Abramowitz & Stegun 26.7.5).

    It is right to 0.1% from 5 degrees of freedom on, between 0.1% and 99.9%."""
    z = NormalDist().inv_cdf(probability)
    terms = (
        z,
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return sum(term / freedom**power for power, term in enumerate(terms))
