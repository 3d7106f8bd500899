"""Means of values whose units (users, sessions) resemble themselves more than each other."""

from collections import Counter, defaultdict
from collections.abc import Sequence

Values = Sequence[tuple[str, float]]  # by unit


def mean(values: Values) -> float:
    return sum(value for _, value in values) / len(values)


def squared_error(values: Values, centre: float) -> float:
    """Return the squared error of the mean `centre`, between units and never less than between values.

    Values of one unit resemble each other."""
    off: defaultdict[str, float] = defaultdict(float)
    for unit, value in values:
        off[unit] += value - centre
    among_values = sum((value - centre) ** 2 for _, value in values) * len(values) / (len(values) - 1)
    among_units = sum(total**2 for total in off.values()) * len(off) / max(1, len(off) - 1)
    return max(among_values, among_units) / len(values) ** 2


def share_error(values: Values, share: float) -> float:
    """Return the same for values of zero and one."""
    return smoothed(squared_error(values, share), share, len(values))


def smoothed(error: float, share: float, count: int) -> float:
    """Return a share's squared error with half a value of each kind added: a share of 0 or 1 is not certain."""
    smooth = (share * count + 0.5) / (count + 1)
    return max(error, smooth * (1 - smooth) / count)


def effective_units(units: Sequence[str]) -> float:
    """Return how many units with equally many values would say as much (Kish, Survey Sampling, 1965)."""
    return len(units) ** 2 / sum(count**2 for count in Counter(units).values()) if units else 0.0
