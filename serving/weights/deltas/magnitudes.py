"""Elements in classes of like magnitude, two octaves each.

A step of the optimizer moves weights by about the same distance, whatever their size, and a float's unit in the last
place is as large as its octave: so it is the small weights that change, and change by several units. Both ends hold
the parent's magnitudes. Positions coded within classes cost 5.5 instead of 8 bits a change at a learning rate of 1e-6,
and finer classes would save only 0.1 more.

Legend: N elements, L elements of a level (those below the classes so far), K of them in its class, R in none yet.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from serving.weights.deltas.dtypes import Bits, Kind
from serving.weights.deltas.subsets import Positions

_SAMPLE = 8192
_FIRST = 0.4  # share of elements that the first class holds at least
_LAST = 1 / 1024  # share that is not divided further
_FEW = 10  # one in so many


def shift_of(kind: Kind) -> int:
    """Bits of a magnitude that count within a class."""
    return (kind.mantissa_bits or 0) + 1


def find_bounds(magnitudes_N: Bits, kind: Kind) -> list[int]:
    """Return the bounds of classes, falling, in units of two octaves.

    The encoder chooses them, and writes them down."""
    if kind.mantissa_bits is None or len(magnitudes_N) < 512:
        return []
    sample = magnitudes_N[:: -(-len(magnitudes_N) // _SAMPLE)] >> kind.bits(shift_of(kind))
    values, counts = np.unique(sample, return_counts=True)
    below = np.cumsum(counts) - counts
    chosen = (below > _LAST * len(sample)) & (below <= (1 - _FIRST) * len(sample))
    return [int(value) for value in values[chosen]][::-1]


@dataclass(frozen=True)
class MagnitudeClasses:
    """One class. Its elements are known by their number in the class, by their position in the level, or in the whole.

    Few of them are found by bisection, many by listing the class.
    """

    size: int  # K
    level: Positions | None  # the level's elements, as positions in the whole; None: it is the whole
    outside_R: Positions  # those of the level that are not in the class, as positions in the level

    def split(self, changed_L: Positions) -> tuple[Positions, Positions, Positions]:
        """Split positions of a level into the class's and the others.

        The class's are returned as numbers in the class and as positions in the whole, the others as positions in the
        next level."""
        if _FEW * len(changed_L) < self.size:
            before = np.searchsorted(self.outside_R, changed_L)
            is_outside = self.outside_R.take(before, mode="clip") == changed_L if len(self.outside_R) else before > 0
            is_inside = ~is_outside
            here = changed_L[is_inside]
            return here - before[is_inside], self._in_whole(here), before[is_outside]
        inside_K = self._inside()
        changed = np.zeros(self.size + len(self.outside_R), np.bool_)
        changed[changed_L] = True
        ranks = np.flatnonzero(changed.take(inside_K))
        return ranks, self._in_whole(inside_K.take(ranks)), np.flatnonzero(changed.take(self.outside_R))

    def select(self, ranks: Positions) -> Positions:
        """Positions in the whole of the elements with these numbers in the class."""
        if _FEW * len(ranks) < self.size:
            before_R = self.outside_R - np.arange(len(self.outside_R))
            return self._in_whole(ranks + np.searchsorted(before_R, ranks, side="right"))
        return self._in_whole(self._inside().take(ranks))

    def _inside(self) -> Positions:
        mask_L = np.ones(self.size + len(self.outside_R), np.bool_)
        mask_L[self.outside_R] = False
        return np.flatnonzero(mask_L)

    def _in_whole(self, positions: Positions) -> Positions:
        return positions if self.level is None else self.level.take(positions)


def divide(magnitudes_N: Bits, bounds: Sequence[int], kind: Kind) -> Iterator[MagnitudeClasses]:
    """Yield the classes above each bound, then the rest."""
    level: Positions | None = None
    magnitudes_L = magnitudes_N
    for bound in bounds:
        outside_R = np.flatnonzero(magnitudes_L < kind.bits(bound << shift_of(kind)))
        yield MagnitudeClasses(len(magnitudes_L) - len(outside_R), level, outside_R)
        level = outside_R if level is None else level.take(outside_R)
        magnitudes_L = magnitudes_L.take(outside_R)
    yield MagnitudeClasses(len(magnitudes_L), level, np.empty(0, np.int64))
