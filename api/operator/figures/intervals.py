"""Means with the interval in which they lie, where turns of one session are alike.

The error of a mean is the one that is robust to clusters (Liang and Zeger, Biometrika 73, 1986): a session of fifty
turns is not fifty witnesses. The intervals hold for one look."""

import math
from collections import defaultdict
from collections.abc import Hashable, Iterable
from statistics import NormalDist, fmean

import msgspec

_CONFIDENCE = 0.95
_Z = NormalDist().inv_cdf((1 + _CONFIDENCE) / 2)


class Estimate(msgspec.Struct, frozen=True, kw_only=True):
    """A mean over values. `error` is its standard error, infinite where fewer than two clusters spoke."""

    mean: float
    error: float

    @property
    def low(self) -> float | None:
        return None if math.isinf(self.error) else self.mean - _Z * self.error

    @property
    def high(self) -> float | None:
        return None if math.isinf(self.error) else self.mean + _Z * self.error

    def __sub__(self, other: "Estimate") -> "Estimate":
        """Return the difference to one that is independent of it."""
        return Estimate(mean=self.mean - other.mean, error=math.hypot(self.error, other.error))


def estimate(values: Iterable[tuple[Hashable, float]]) -> Estimate:
    """Estimate the mean of (cluster, value) pairs, of which there must be some."""
    found = list(values)
    mean = fmean(value for _, value in found)
    deviations: dict[Hashable, float] = defaultdict(float)
    for cluster, value in found:
        deviations[cluster] += value - mean
    count = len(deviations)
    if count < 2:
        return Estimate(mean=mean, error=math.inf)
    spread = sum(deviation**2 for deviation in deviations.values()) * count / (count - 1)
    return Estimate(mean=mean, error=math.sqrt(spread) / len(found))


def quantile(ordered: list[float], share: float) -> float | None:
    """Return the value below which that share of the ordered values lies; None where there are none."""
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else None
