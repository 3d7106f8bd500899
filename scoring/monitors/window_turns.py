"""The turns of a window, with the measures of them, each computed once."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar, overload

from scoring.monitors.tally import Measure, Pair, Products, Shares, Summary, Sums, Tally, Totals
from scoring.monitors.watched import WatchedTurn

Found = TypeVar("Found")
Summed = TypeVar("Summed", bound=Sums)


class WindowTurns(Sequence[WatchedTurn]):
    """Turns that do not change."""

    def __init__(self, turns: Sequence[WatchedTurn] = ()) -> None:
        self.turns = turns
        self._known: dict[Callable[..., Any], Any] = {}

    def summary(self, measure: Measure) -> Summary:
        return self._find(measure, lambda: self._summed(Tally, measure).summary())

    def totals(self, shares: Shares) -> Mapping[str, float]:
        return self._find(shares, lambda: self._summed(Totals, shares).totals())

    def correlation(self, pair: Pair) -> tuple[int, float] | None:
        return self._find(pair, lambda: self._summed(Products, pair).correlation())

    def once(self, find: Callable[[Sequence[WatchedTurn]], Found]) -> Found:
        """Return what a function of a module finds in the turns, computed once."""
        return self._find(find, lambda: find(self.turns))

    def _find(self, key: Callable[..., Any], find: Callable[[], Found]) -> Found:
        if key not in self._known:
            self._known[key] = find()
        found: Found = self._known[key]
        return found

    def _summed(self, kind: Callable[[Any], Summed], of: Callable[[WatchedTurn], Any]) -> Summed:
        sums = kind(of)
        sums.add(self.turns)
        return sums

    def __len__(self) -> int:
        return len(self.turns)

    def __iter__(self) -> Iterator[WatchedTurn]:
        return iter(self.turns)

    @overload
    def __getitem__(self, place: int) -> WatchedTurn: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[WatchedTurn]: ...
    def __getitem__(self, place: int | slice) -> WatchedTurn | Sequence[WatchedTurn]:
        return self.turns[place]


class MovedTurns(WindowTurns):
    """The turns of a window that moved: it takes over the earlier window's sums where most turns are the same.

    Sums always belong to one window, and the earlier one loses them."""

    def __init__(self, turns: Sequence[WatchedTurn] = (), before: "MovedTurns | None" = None) -> None:
        super().__init__(turns)
        self._here = dict(zip(map(id, turns), turns, strict=True))  # a turn that changed is another object
        self._sums: dict[Callable[..., Any], Sums] = {}
        self._sums_before: dict[Callable[..., Any], Sums] = {}
        if before is not None:
            there = before._here
            self._came = [self._here[each] for each in self._here.keys() - there.keys()]
            self._went = [there[each] for each in there.keys() - self._here.keys()]
            if len(self._came) + len(self._went) < len(turns):
                self._sums_before = before._sums

    def _summed(self, kind: Callable[[Any], Summed], of: Callable[[WatchedTurn], Any]) -> Summed:
        sums: Any = self._sums_before.pop(of, None)
        if sums is None:
            sums = super()._summed(kind, of)
        else:
            sums.take_away(self._went)
            sums.add(self._came)
        self._sums[of] = sums
        found: Summed = sums
        return found
