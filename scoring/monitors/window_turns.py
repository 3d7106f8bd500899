"""The turns of a window and what was measured of them, once, however often they are compared."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar, overload

from core.clustered import effective_units, mean, smoothed, squared_error
from scoring.monitors.watched import Watched

LEAST = 50  # turns on either side
LEAST_UNITS = 5

Found = TypeVar("Found")
Measure = Callable[[Watched], float | None]
"""None: the turn says nothing of it. A function of a module: what it found is known by it."""


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


@dataclass(frozen=True)
class WindowTurns(Sequence[Watched]):
    """Turns that do not change."""

    turns: Sequence[Watched] = ()
    _summaries: dict[Measure, Summary] = field(default_factory=dict, compare=False, repr=False)
    _known: dict[Callable[..., Any], Any] = field(default_factory=dict, compare=False, repr=False)

    def summary(self, measure: Measure) -> Summary:
        if measure not in self._summaries:
            self._summaries[measure] = self._measured(measure)
        return self._summaries[measure]

    def once(self, find: Callable[[Sequence[Watched]], Found]) -> Found:
        """Return what a function of a module finds in the turns, computed once."""
        if find not in self._known:
            self._known[find] = find(self.turns)
        found: Found = self._known[find]
        return found

    def _measured(self, measure: Measure) -> Summary:
        values = [(turn.unit, value) for turn in self.turns if (value := measure(turn)) is not None]
        if len(values) < 2:
            return _NOTHING
        centre = mean(values)
        return Summary(
            len(values), effective_units([unit for unit, _ in values]), centre, squared_error(values, centre)
        )

    def __len__(self) -> int:
        return len(self.turns)

    def __iter__(self) -> Iterator[Watched]:
        return iter(self.turns)

    @overload
    def __getitem__(self, place: int) -> Watched: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[Watched]: ...
    def __getitem__(self, place: int | slice) -> Watched | Sequence[Watched]:
        return self.turns[place]
