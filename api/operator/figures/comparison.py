"""Two sets of turns compared by their rewards, so that anybody may look at any time.

Each workload is held against itself: what matters is what became of it, not how much of it there was.
The error is that of users, each held against themselves where they are on both sides
(`core.statistics.clustered`); of sessions, where there are too few users. The interval is a confidence sequence:
looking again and again does not make it wrong."""

from collections import defaultdict
from collections.abc import Callable, Sequence
from math import sqrt
from statistics import pvariance
from typing import Literal, Protocol

import msgspec

from core.statistics.clustered import Contrast, contrast_within, sums
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
    def workload(self) -> str: ...
    @property
    def value(self) -> float: ...


_Pair = tuple[Sequence[Rewarded], Sequence[Rewarded]]
"""Turns of both sides."""


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """How much more one side was rewarded than the other, with its 95 % interval; None: too early to say."""

    verdict: Verdict
    difference: float | None = None
    low: float | None = None
    high: float | None = None


TOO_EARLY = Comparison(verdict="too early")


def compare(mine: Sequence[Rewarded], theirs: Sequence[Rewarded], looks: int = 1) -> Comparison:
    """Compare two sets of turns, within the workloads that both have; it is too early where most of mine have none.

    `looks`: how many such comparisons are made at once, of which none may be wrong."""
    strata = _by_workload(mine, theirs)
    if not strata or 2 * sum(len(ours) for ours, _ in strata) < len(mine):
        return TOO_EARLY
    found = _contrast(strata, lambda turn: turn.user_id or turn.session_id)
    if found.units < LEAST_UNITS:
        found = _contrast(strata, lambda turn: turn.session_id)
    if found.units < LEAST_UNITS:
        return TOO_EARLY
    known = confidence_sequence(found.difference, standard_error(found, strata), _ALPHA / looks, _SCALE)
    verdict: Verdict = "better" if known.low > 0 else "worse" if known.high < 0 else "no difference"
    return Comparison(verdict=verdict, difference=known.estimate, low=known.low, high=known.high)


def _by_workload(mine: Sequence[Rewarded], theirs: Sequence[Rewarded]) -> list[_Pair]:
    """Return the turns of each workload that both sides have."""
    found: defaultdict[str, tuple[list[Rewarded], list[Rewarded]]] = defaultdict(lambda: ([], []))
    for side, turns in enumerate((mine, theirs)):
        for turn in turns:
            found[turn.workload][side].append(turn)
    return [pair for pair in found.values() if pair[0] and pair[1]]


def _contrast(strata: Sequence[_Pair], unit: Callable[[Rewarded], str]) -> Contrast:
    return contrast_within(
        (sums([(unit(turn), turn.value) for turn in mine]), sums([(unit(turn), turn.value) for turn in theirs]))
        for mine, theirs in strata
    )


def standard_error(found: Contrast, strata: Sequence[_Pair]) -> float:
    """Return the standard error, larger where few units spoke (Student's quantile, by its first term).

    A side that has said the same every time so far may still say something else: it counts as if it varied by half as
    much as all turns together."""
    spread = sum((len(mine) + len(theirs)) * pvariance(_values(mine, theirs)) for mine, theirs in strata)
    ours, theirs_ = (sum(len(pair[side]) for pair in strata) for side in (0, 1))
    least = spread / (ours + theirs_) * (1 / ours + 1 / theirs_) / 4
    return sqrt(max(found.squared_error, least)) * (1 + 2.5 / (found.units - 1))


def _values(*sides: Sequence[Rewarded]) -> list[float]:
    return [turn.value for side in sides for turn in side]
