"""Statistics of a measure over the turns of a window, from sums to which turns are added and from which they are taken.

The sums are integers, so nothing is lost by rounding: they depend only on the turns in the window, not on their order
or on earlier turns. So a window that moved gives the same figures as one that is made anew."""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import isqrt, nan

from core.statistics.clustered import SCALE, parts, smoothed
from scoring.monitors.watched import WatchedTurn

LEAST = 50  # turns on either side
LEAST_UNITS = 5

Measure = Callable[[WatchedTurn], float | None]
"""None: the turn says nothing of it. A function of a module: what it found is known by it."""
Pair = Callable[[WatchedTurn], tuple[float, float] | None]
Shares = Callable[[WatchedTurn], Iterable[tuple[str, float]]]
"""What a turn has of each of some names."""


@dataclass(frozen=True)
class Summary:
    """A summary of a measure over `count` turns.

    `units`: the effective number of users (Kish), which is one when one user has nearly all turns. `error` and
    `share_error`, of the mean, are squared, and are of users, whose turns resemble each other."""

    count: int
    units: float
    mean: float
    error: float

    @property
    def share_error(self) -> float:
        return smoothed(self.error, self.mean, self.count)

    def is_enough(self, least: int = LEAST) -> bool:
        return self.count >= least and self.units >= LEAST_UNITS


_NOTHING = Summary(0, 0.0, 0.0, 0.0)


class Sums:
    """Sums over turns. After an exception in a method they must not be used any more."""

    def add(self, turns: Iterable[WatchedTurn]) -> None:
        self._change(turns, 1)

    def take_away(self, turns: Iterable[WatchedTurn]) -> None:
        self._change(turns, -1)

    def _change(self, turns: Iterable[WatchedTurn], sign: int) -> None:
        raise NotImplementedError


class Tally(Sums):
    """The sums of one measure: over its values, and over users of their counts and totals."""

    def __init__(self, measure: Measure) -> None:
        self._measure = measure
        self._count = self._total = self._squares = 0
        self._endless = 0  # values that are no finite number: while there is one, there is no mean
        self._of_units: dict[str, tuple[int, int]] = {}  # count and total
        self._totals_squared = self._counts_by_totals = self._counts_squared = 0  # summed over users

    def _change(self, turns: Iterable[WatchedTurn], sign: int) -> None:
        changed: dict[str, tuple[int, int]] = {}
        for turn in turns:
            value = self._measure(turn)
            if value is None:
                continue
            try:
                of_it = parts(value)
            except OverflowError:
                self._endless += sign
                of_it = 0
            self._squares += sign * of_it * of_it
            count, total = changed.get(turn.unit, (0, 0))
            changed[turn.unit] = count + sign, total + sign * of_it
        for unit, (count, total) in changed.items():
            self._change_unit(unit, count, total)

    def _change_unit(self, unit: str, more: int, more_total: int) -> None:
        count, total = self._of_units.pop(unit, (0, 0))
        now, now_total = count + more, total + more_total
        if now:
            self._of_units[unit] = now, now_total
        self._count += more
        self._total += more_total
        self._totals_squared += now_total**2 - total**2
        self._counts_by_totals += now * now_total - count * total
        self._counts_squared += now**2 - count**2

    def summary(self) -> Summary:
        """Return the `mean`, `effective_units` and `squared_error` of `core.statistics.clustered`."""
        count, total, units = self._count, self._total, len(self._of_units)
        if count < 2:
            return _NOTHING
        effective = count**2 / self._counts_squared
        if self._endless:
            return Summary(count, effective, nan, nan)
        among_values = (count * self._squares - total**2) / (count**2 * (count - 1) * SCALE**2)
        off = (
            count**2 * self._totals_squared
            - 2 * count * total * self._counts_by_totals
            + total**2 * self._counts_squared
        )
        among_units = off * units / (count**4 * max(1, units - 1) * SCALE**2)
        return Summary(count, effective, total / (count * SCALE), max(among_values, among_units))


class Totals(Sums):
    """The sum over all turns, for each name."""

    def __init__(self, shares: Shares) -> None:
        self._shares = shares
        self._of_names: dict[str, tuple[int, int]] = {}  # count and total

    def _change(self, turns: Iterable[WatchedTurn], sign: int) -> None:
        known = self._of_names
        for turn in turns:
            for name, value in self._shares(turn):
                count, total = known.get(name, (0, 0))
                known[name] = count + sign, total + sign * parts(value)
                if count + sign == 0:
                    del known[name]

    def totals(self) -> dict[str, float]:
        """Return the totals in the order of names: sums of them do not depend on which turn came first."""
        return {name: total / SCALE for name, (_, total) in sorted(self._of_names.items())}


class Products(Sums):
    """The sums of a pair of measures from which their correlation follows."""

    def __init__(self, pair: Pair) -> None:
        self._pair = pair
        self._of_users: Counter[str] = Counter()
        self._firsts = self._seconds = self._firsts_squared = self._seconds_squared = self._products = 0

    def _change(self, turns: Iterable[WatchedTurn], sign: int) -> None:
        for turn in turns:
            found = self._pair(turn)
            if found is None:
                continue
            self._of_users[turn.unit] += sign
            first, second = map(parts, found)
            self._firsts += sign * first
            self._seconds += sign * second
            self._firsts_squared += sign * first * first
            self._seconds_squared += sign * second * second
            self._products += sign * first * second
        self._of_users = +self._of_users

    def correlation(self) -> tuple[int, float] | None:
        """Return the number of turns and the correlation; None where there are too few, or one does not vary."""
        count = self._of_users.total()
        if count < LEAST or count**2 < LEAST_UNITS * sum(each**2 for each in self._of_users.values()):
            return None
        one = count * self._firsts_squared - self._firsts**2
        other = count * self._seconds_squared - self._seconds**2
        off = count * self._products - self._firsts * self._seconds
        return (count, off / isqrt(one * other)) if one and other else None
