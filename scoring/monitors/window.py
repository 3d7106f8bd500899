"""The turns that a monitor compares, and how it tells a change from chance.

`recent` turns are held against `reference` ones: the service's own past, from before the model could have learned to
game anything. Monitors look again and again, so one look must hardly ever be wrong: a difference counts when it is
larger than what matters by `SIGMAS` standard errors (one-sided 3e-5 for a normal mean; a thousand looks are then wrong
once in thirty), with errors of users, who resemble themselves, and not of turns.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import sqrt
from statistics import fmean, pstdev

from core.clustered import Values, mean, share_error, squared_error
from scoring.monitors.watched import Watched

SIGMAS = 4.0
LEAST = 50  # turns on either side
LEAST_UNITS = 5


@dataclass(frozen=True)
class Window:
    """`reference`: empty while there is not enough of a past; a bound that no past excuses holds from the start."""

    recent: Sequence[Watched]
    reference: Sequence[Watched]


@dataclass(frozen=True)
class Finding:
    """What a monitor saw, as figures for people; an alarm where it `trips`."""

    trips: bool
    figures: dict[str, float]


Measure = Callable[[Watched], float | None]
"""None: the turn says nothing of it."""


def rises(
    window: Window, measure: Measure, matters: float, *, is_share: bool = False, least: int = LEAST
) -> Finding | None:
    """Whether the mean of `measure` lies above the reference's by more than `matters`. None: too few turns to say, of
    which there must be `least` recent ones."""
    recent, reference = _values(window.recent, measure), _values(window.reference, measure)
    if not (_is_enough(recent, least) and _is_enough(reference)):
        return None
    now, before = mean(recent), mean(reference)
    error_of = share_error if is_share else squared_error
    error = sqrt(error_of(recent, now) + error_of(reference, before))
    figures = {"recent": now, "reference": before, "turns": float(len(recent)), "standard_error": error}
    return Finding(now - before - matters > SIGMAS * error, figures)


def exceeds(window: Window, measure: Measure, most: float) -> Finding | None:
    """Whether the share of `measure` lies above `most`, whatever it was before. None: too few turns to say."""
    recent = _values(window.recent, measure)
    if not _is_enough(recent):
        return None
    now = mean(recent)
    error = sqrt(share_error(recent, now))
    figures = {"recent": now, "reference": most, "turns": float(len(recent)), "standard_error": error}
    return Finding(now - most > SIGMAS * error, figures)


def goes_with(window: Window, first: Measure, second: Measure, most: float) -> Finding | None:
    """Whether the correlation of two measures lies above `most`, whatever it was before. None: too few turns to say, or
    one of them does not vary. Its error is that of the mean of the turns' influences on it (the delta method)."""
    measured = [(turn.unit, first(turn), second(turn)) for turn in window.recent]
    said = [(unit, a, b) for unit, a, b in measured if a is not None and b is not None]
    if not _is_enough([(unit, a) for unit, a, _ in said]):
        return None
    one, other = _standardised([a for _, a, _ in said]), _standardised([b for _, _, b in said])
    if not one or not other:
        return None
    found = fmean(a * b for a, b in zip(one, other, strict=True))
    influences = [a * b - found * (a**2 + b**2) / 2 for a, b in zip(one, other, strict=True)]
    error = sqrt(squared_error([(unit, value) for (unit, _, _), value in zip(said, influences, strict=True)], 0.0))
    figures = {"recent": found, "reference": most, "turns": float(len(said)), "standard_error": error}
    return Finding(found - most > SIGMAS * error, figures)


def falls(window: Window, measure: Measure, matters: float, *, is_share: bool = False) -> Finding | None:
    """The same downwards."""
    found = rises(window, lambda turn: None if (value := measure(turn)) is None else -value, matters, is_share=False)
    if found is None:
        return None
    figures = found.figures | {name: -found.figures[name] for name in ("recent", "reference")}
    return Finding(found.trips, figures)


def _values(turns: Sequence[Watched], measure: Measure) -> Values:
    return [(turn.unit, value) for turn in turns if (value := measure(turn)) is not None]


def _standardised(values: Sequence[float]) -> list[float]:
    """With mean 0 and variance 1; [] where they do not vary."""
    deviation = pstdev(values)
    centre = fmean(values)
    return [(value - centre) / deviation for value in values] if deviation else []


def _is_enough(values: Values, least: int = LEAST) -> bool:
    """Also of users: of their effective number (Kish), which is one where one has nearly all turns."""
    counts = Counter(unit for unit, _ in values).values()
    return len(values) >= least and len(values) ** 2 >= LEAST_UNITS * sum(count**2 for count in counts)
