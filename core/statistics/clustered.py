"""Means of values whose units (users, sessions) resemble themselves more than each other."""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

SCALE: Final = 1 << 128
"""Sums that values are added to and taken from are whole numbers of parts so small, of which nothing is lost by
rounding: they depend on the values that are there, and on none that was. Of a double above 1e-22 no part is cut off."""
_FLOAT_SCALE: Final = float(SCALE)
MOST: Final = 2.0**800
"""Beyond it a value has no number of parts, nor a square."""

Values = Sequence[tuple[str, float]]  # by unit


def parts(value: float) -> int:
    """Return a value as a number of parts. Raises OverflowError for one that is too large, and for no number."""
    if not -MOST < value < MOST:
        raise OverflowError(f"{value} is not summed")
    return int(value * _FLOAT_SCALE)


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


_HARD_TO_PLEASE = 0.11
"""How much units differ from each other, to the variance of a value. The error is the units' own whatever this is."""
_MOVED_OTHERWISE = 0.02
"""How much they differ in what a change means to them: of one with very many values no more than fifty count."""


@dataclass
class UnitSums:
    """The values of one unit on one side, as the sums that comparisons need."""

    count: int = 0
    total: int = 0  # in parts, and the squares in parts of parts
    squares: int = 0

    @property
    def mean(self) -> float:
        return float(self.total) / _FLOAT_SCALE / self.count

    @property
    def deviation(self) -> float:
        """The sum of squares about the mean."""
        if self.count == 1:
            return 0.0
        return float(self.count * self.squares - self.total**2) / _FLOAT_SCALE / _FLOAT_SCALE / self.count

    def change(self, value: float, sign: int = 1) -> None:
        of_it = parts(value)
        self.count += sign
        self.total += sign * of_it
        self.squares += sign * of_it * of_it


@dataclass
class FixedSums:
    """The same sums of values from which none will be taken away: as floats, at half the cost."""

    count: int = 0
    total: float = 0.0
    squares: float = 0.0

    @property
    def mean(self) -> float:
        return self.total / self.count

    @property
    def deviation(self) -> float:
        return max(0.0, self.squares - self.total**2 / self.count)

    def add(self, value: float) -> None:
        self.count += 1
        self.total += value
        self.squares += value**2


class Summed(Protocol):
    """Sums of either kind."""

    count: int

    @property
    def mean(self) -> float: ...
    @property
    def deviation(self) -> float: ...


@dataclass(frozen=True)
class Contrast:
    """A difference of two sides. `units`: as many that say equally much would say as much (Kish)."""

    difference: float
    squared_error: float
    units: float


NO_CONTRAST = Contrast(math.nan, math.inf, 0.0)


def contrast(mine: Mapping[str, Summed], theirs: Mapping[str, Summed]) -> Contrast:
    """Return the mean difference, mine less theirs, with each unit held against itself as far as it is on both sides.

    Generalised least squares with an effect of each unit, which is taken off as far as its values show it: so it
    matters little who is hard to please. The error is between units (Liang & Zeger 1986), and never less than that
    between values."""
    fit = _fit(mine, theirs)
    return NO_CONTRAST if fit is None else _joined([fit], fit.difference, fit.says(), fit.off(fit.difference))


def contrast_within(strata: Iterable[tuple[Mapping[str, Summed], Mapping[str, Summed]]]) -> Contrast:
    """Return the same within strata, each with a level of its own: how much of which a side has does not matter.

    Strata count by what they know of the difference; those that know nothing of it are left out. A unit that stands in
    several is one. What a stratum says otherwise than all together is part of the error."""
    fits = [fit for mine, theirs in strata if (fit := _fit(mine, theirs)) is not None]
    if not fits:
        return NO_CONTRAST
    whole = sum([fit.information for fit in fits])
    found = sum([fit.difference * fit.information for fit in fits]) / whole
    says: defaultdict[str, float] = defaultdict(float)
    off: defaultdict[str, float] = defaultdict(float)
    for fit in fits:
        count = len(fit.weighed)
        wider = math.sqrt(count / (count - 1))  # its level is its own: of few units little is left of what they are off
        for unit, its_say, its_off in zip(fit.units, fit.says(), fit.off(found), strict=True):
            says[unit] += its_say
            off[unit] += wider * its_off
    return _joined(fits, found, list(says.values()), list(off.values()))


@dataclass(frozen=True)
class _Fit:
    """What one stratum knows. `weighed`: each unit's part of the normal equations, and `sums` those of all."""

    units: list[str]
    weighed: list[tuple[float, float, float, float, float]]
    sums: tuple[float, float, float, float, float]
    difference: float
    information: float
    """The inverse of the squared error if values had a variance of 1."""
    variance: float

    def says(self) -> list[float]:
        """Return how much each unit says of the difference."""
        all_, on, *_ = self.sums
        twice, squared = 2 * on / all_, (on / all_) ** 2
        return [mine - twice * both + squared * each for each, both, mine, _, _ in self.weighed]

    def off(self, difference: float) -> list[float]:
        """Return how far each unit is from what that difference, and the level that fits it best, would make of it."""
        all_, on, _, earned, _ = self.sums
        level, share = (earned - on * difference) / all_, on / all_
        return [
            (b2 - both * level - mine * difference) - share * (b1 - each * level - both * difference)
            for each, both, mine, b1, b2 in self.weighed
        ]


def _fit(mine: Mapping[str, Summed], theirs: Mapping[str, Summed]) -> _Fit | None:
    units = list({**mine, **theirs})
    weighed = [_weighed(mine.get(unit), theirs.get(unit)) for unit in units]
    free = sum(each.count - 1 for side in (mine, theirs) for each in side.values())
    all_, on, on_mine, earned, earned_mine = map(sum, zip(*weighed, strict=True)) if weighed else (0.0,) * 5
    information = all_ * on_mine - on**2  # the determinant of the normal equations
    if information <= 1e-12 * all_**2:
        return None
    found = (all_ * earned_mine - on * earned) / information
    variance = sum(each.deviation for side in (mine, theirs) for each in side.values()) / max(1, free)
    sums_ = all_, on, on_mine, earned, earned_mine
    return _Fit(units, weighed, sums_, found, information / all_, variance)


def _joined(fits: Sequence[_Fit], found: float, says: Sequence[float], off: Sequence[float]) -> Contrast:
    units = sum(says) ** 2 / sum([each**2 for each in says])
    if units <= 1:
        return NO_CONTRAST
    whole = sum([fit.information for fit in fits])
    among_values = sum([fit.variance * fit.information for fit in fits]) / whole**2
    among_units = sum([each**2 for each in off]) * len(off) / (len(off) - 1) / whole**2
    return Contrast(found, max(among_units, among_values), units)


def _weighed(mine: Summed | None, theirs: Summed | None) -> tuple[float, float, float, float, float]:
    """Return a unit's part of the normal equations: of all its values, of mine, and of what these are worth."""
    one = other = earned_mine = earned = 0.0
    if mine is not None:
        one = mine.count / (1 + _MOVED_OTHERWISE * mine.count)
        earned = earned_mine = one * mine.mean
    if theirs is not None:
        other = theirs.count / (1 + _MOVED_OTHERWISE * theirs.count)
        earned += other * theirs.mean
    weight = one + other
    off = _HARD_TO_PLEASE / (1 + _HARD_TO_PLEASE * weight)
    return (
        weight - off * weight**2,
        one - off * weight * one,
        one - off * one**2,
        earned - off * weight * earned,
        earned_mine - off * one * earned,
    )


def together(sides: Iterable[Mapping[str, UnitSums]]) -> dict[str, UnitSums]:
    """Return what several sides know of each unit, as one."""
    found: defaultdict[str, UnitSums] = defaultdict(UnitSums)
    for side in sides:
        for unit, known in side.items():
            so_far = found[unit]
            so_far.count += known.count
            so_far.total += known.total
            so_far.squares += known.squares
    return found


def sums(values: Iterable[tuple[str, float]]) -> dict[str, FixedSums]:
    found: defaultdict[str, FixedSums] = defaultdict(FixedSums)
    for unit, value in values:
        found[unit].add(value)
    return found
