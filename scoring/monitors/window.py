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

from core.clustered import Values, mean, share_error, squared_error
from scoring.monitors.watched import Watched

SIGMAS = 4.0
LEAST = 50  # turns on either side
LEAST_UNITS = 5


@dataclass(frozen=True)
class Window:
    recent: Sequence[Watched]
    reference: Sequence[Watched]


@dataclass(frozen=True)
class Finding:
    """What a monitor saw, as figures for people; an alarm where it `trips`."""

    trips: bool
    figures: dict[str, float]


Measure = Callable[[Watched], float | None]
"""None: the turn says nothing of it."""


def rises(window: Window, measure: Measure, matters: float, *, is_share: bool = False) -> Finding | None:
    """Whether the mean of `measure` lies above the reference's by more than `matters`. None: too few turns to say."""
    recent, reference = _values(window.recent, measure), _values(window.reference, measure)
    if not (_is_enough(recent) and _is_enough(reference)):
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


def falls(window: Window, measure: Measure, matters: float, *, is_share: bool = False) -> Finding | None:
    """The same downwards."""
    found = rises(window, lambda turn: None if (value := measure(turn)) is None else -value, matters, is_share=False)
    if found is None:
        return None
    figures = found.figures | {name: -found.figures[name] for name in ("recent", "reference")}
    return Finding(found.trips, figures)


def _values(turns: Sequence[Watched], measure: Measure) -> Values:
    return [(turn.unit, value) for turn in turns if (value := measure(turn)) is not None]


def _is_enough(values: Values) -> bool:
    """Also of users: of their effective number (Kish), which is one where one has nearly all turns."""
    counts = Counter(unit for unit, _ in values).values()
    return len(values) >= LEAST and len(values) ** 2 >= LEAST_UNITS * sum(count**2 for count in counts)
