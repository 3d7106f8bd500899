"""The turns that a monitor compares, and how it tells a change from chance.

`recent` turns are compared with `reference` ones: the service's own past, from before the model could have learned to
game anything. Monitors look again and again, so one look must hardly ever be wrong: a difference counts when it is
larger than what matters by `SIGMAS` standard errors (one-sided 3e-5 for a normal mean; a thousand looks are then wrong
once in thirty). The errors are of users, whose turns resemble each other, and not of turns."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import sqrt
from statistics import fmean

from core.statistics.clustered import squared_error
from scoring.monitors.tally import LEAST, Measure, Pair, Summary
from scoring.monitors.watched import WatchedTurn
from scoring.monitors.window_turns import WindowTurns

SIGMAS = 4.0


@dataclass(frozen=True)
class Window:
    """Recent turns and a reference.

    `reference` is empty while there is not enough of a past; bounds that no past excuses apply from the start. Where
    ripe turns are looked at: `best` are those that earned most so far, and `all_users` the recent ones again, of which
    one user may have any number. Of the others no user has more than a fifth."""

    recent: WindowTurns
    reference: WindowTurns
    best: WindowTurns = field(default_factory=WindowTurns)
    all_users: WindowTurns = field(default_factory=WindowTurns)

    @classmethod
    def of(
        cls, recent: Sequence[WatchedTurn], reference: Sequence[WatchedTurn] = (), best: Sequence[WatchedTurn] = ()
    ) -> "Window":
        return cls(WindowTurns(recent), WindowTurns(reference), WindowTurns(best), WindowTurns(recent))


@dataclass(frozen=True)
class Finding:
    """The figures that a monitor found, for people; an alarm if it `trips`."""

    trips: bool
    figures: dict[str, float]


def rises(window: Window, measure: Measure, matters: float, *, is_share: bool = False) -> Finding | None:
    """Find whether the mean of `measure` is above the reference's by more than `matters`.

    Returns None when there are too few turns to say."""
    return differs(window.recent.summary(measure), window.reference.summary(measure), matters, is_share=is_share)


def falls(window: Window, measure: Measure, matters: float) -> Finding | None:
    """Find whether the mean of `measure` is below the reference's by more than `matters`."""
    return differs(window.recent.summary(measure), window.reference.summary(measure), matters, sign=-1.0)


def differs(
    now: Summary, before: Summary, matters: float, *, is_share: bool = False, sign: float = 1.0, least: int = LEAST
) -> Finding | None:
    """Find whether one mean is above another, or with `sign` -1 below it; there must be `least` turns of the first."""
    if not (now.is_enough(least) and before.is_enough()):
        return None
    error = sqrt(now.share_error + before.share_error if is_share else now.error + before.error)
    figures = {"recent": now.mean, "reference": before.mean, "turns": float(now.count), "standard_error": error}
    return Finding(sign * (now.mean - before.mean) - matters > SIGMAS * error, figures)


def exceeds(window: Window, measure: Measure, most: float) -> Finding | None:
    """Find whether the share of `measure` is above `most`, whatever it was before; None: too few turns to say."""
    now = window.recent.summary(measure)
    if not now.is_enough():
        return None
    error = sqrt(now.share_error)
    figures = {"recent": now.mean, "reference": most, "turns": float(now.count), "standard_error": error}
    return Finding(now.mean - most > SIGMAS * error, figures)


def goes_with(window: Window, pair: Pair, most: float) -> Finding | None:
    """Find whether the correlation of two measures is above `most`, whatever it was before.

    Returns None when there are too few turns to say, or one measure does not vary. The error is that of the mean of the
    turns' influences on it (the delta method)."""
    known = window.recent.correlation(pair)
    if known is None:
        return None
    count, found = known
    figures = {"recent": found, "reference": most, "turns": float(count)}
    if found <= most:
        return Finding(False, figures)
    said = [(turn.unit, *both) for turn in window.recent if (both := pair(turn)) is not None]
    one, other = _standardised([a for _, a, _ in said]), _standardised([b for _, _, b in said])
    influences = [a * b - found * (a**2 + b**2) / 2 for a, b in zip(one, other, strict=True)]
    error = sqrt(squared_error([(unit, value) for (unit, _, _), value in zip(said, influences, strict=True)], 0.0))
    figures["standard_error"] = error
    return Finding(found - most > SIGMAS * error, figures)


def _standardised(values: Sequence[float]) -> list[float]:
    """Scale values to mean 0 and variance 1; they vary."""
    centre = fmean(values)
    deviation = sqrt(fmean((value - centre) ** 2 for value in values))
    return [(value - centre) / deviation for value in values]
