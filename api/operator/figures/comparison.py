"""Two sets of turns compared by their rewards, so that anybody may look at any time.

The error is that of users, each held against themselves where they are on both sides
(`core.statistics.clustered`); of sessions, where there are too few users. The interval is a confidence sequence:
looking again and again does not make it wrong."""

from collections.abc import Callable, Sequence
from math import sqrt
from statistics import pvariance
from typing import Literal, Protocol

import msgspec

from core.statistics.clustered import Contrast, contrast, sums
from core.statistics.sequential import confidence_sequence

_ALPHA = 0.025  # of each end
_SCALE = 0.3  # of the difference that is found soonest
LEAST_UNITS = 10.0
"""Users, or sessions, that have to have spoken (as many with equally much to say, by Kish)."""

Verdict = Literal["better", "worse", "no difference", "too early"]


class Rewarded(Protocol):
    """A turn with its reward."""

    @property
    def user_id(self) -> str | None: ...
    @property
    def session_id(self) -> str: ...
    @property
    def value(self) -> float: ...


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """How much more one side was rewarded than the other, with its 95 % interval; None: too early to say."""

    verdict: Verdict
    difference: float | None = None
    low: float | None = None
    high: float | None = None


TOO_EARLY = Comparison(verdict="too early")


def compare(mine: Sequence[Rewarded], theirs: Sequence[Rewarded], looks: int = 1) -> Comparison:
    """Compare two sets of turns. `looks`: how many such comparisons are made at once, of which none may be wrong."""
    if not mine or not theirs:
        return TOO_EARLY
    found = _contrast(mine, theirs, lambda turn: turn.user_id or turn.session_id)
    if found.units < LEAST_UNITS:
        found = _contrast(mine, theirs, lambda turn: turn.session_id)
    if found.units < LEAST_UNITS:
        return TOO_EARLY
    known = confidence_sequence(found.difference, _error(found, mine, theirs), _ALPHA / looks, _SCALE)
    verdict: Verdict = "better" if known.low > 0 else "worse" if known.high < 0 else "no difference"
    return Comparison(verdict=verdict, difference=known.estimate, low=known.low, high=known.high)


def _contrast(mine: Sequence[Rewarded], theirs: Sequence[Rewarded], unit: Callable[[Rewarded], str]) -> Contrast:
    one, other = (sums([(unit(turn), turn.value) for turn in side]) for side in (mine, theirs))
    return contrast(one, other)


def _error(found: Contrast, mine: Sequence[Rewarded], theirs: Sequence[Rewarded]) -> float:
    """Return the standard error, larger where few units spoke (Student's quantile, by its first term).

    A side that has said the same every time so far may still say something else: it counts as if it varied by half as
    much as all turns together."""
    varied = pvariance([turn.value for side in (mine, theirs) for turn in side])
    least = varied * (1 / len(mine) + 1 / len(theirs)) / 4
    return sqrt(max(found.squared_error, least)) * (1 + 2.5 / (found.units - 1))
