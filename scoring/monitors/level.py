"""The monitor of the level: whether what is served now earns less than what was served before."""

from collections import Counter
from collections.abc import Sequence
from math import sqrt

from core.statistics.clustered import FixedSums, contrast, sums
from scoring.monitors.tally import LEAST, LEAST_UNITS, Measure
from scoring.monitors.watched import WatchedTurn
from scoring.monitors.window import Finding, Window
from scoring.monitors.window_turns import WindowTurns

_MATTERS = 0.03
_SIGMAS = 3.5
"""Fewer than elsewhere: it holds nothing. bench.scoring.fall_trials has how often it is wrong."""


def worse_than_best(window: Window) -> Finding | None:
    """The same users' rewards are 0.03 below those of the best turns so far; in production, where there is any.

    The figures name the version that served most of either."""
    is_production = window.best.summary(_in_production).is_enough()
    earn = _in_production_by_user if is_production else _by_user
    recent, best = window.recent.once(earn), window.best.once(earn)
    found = contrast(recent, best)
    turns = min(sum(each.count for each in side.values()) for side in (recent, best))
    if turns < LEAST or found.units < LEAST_UNITS:
        return None
    error = sqrt(found.squared_error)
    measure = _in_production if is_production else _value
    reference = window.best.summary(measure).mean
    figures = {"recent": reference + found.difference, "reference": reference, "turns": float(turns)}
    figures |= {"standard_error": error, "users": found.units}
    for name, served in (("version", window.recent), ("best_version", window.best)):
        version = served.once(_version)
        if version is not None:
            figures[name] = version
    return Finding(found.difference < -_MATTERS - _SIGMAS * error, figures)


def floor(turns: WindowTurns) -> tuple[bool, float] | None:
    """Return how good turns are, to be compared: by a standard error less than they seem, since the best are lucky.

    Production comes before simulation. None: too few turns to say."""
    is_production = turns.summary(_in_production).is_enough()
    found = turns.summary(_in_production if is_production else _value)
    return (is_production, found.mean - sqrt(found.error)) if found.is_enough() else None


def _in_production(turn: WatchedTurn) -> float | None:
    return turn.value if turn.environment == "production" else None


def _value(turn: WatchedTurn) -> float | None:
    return turn.value


def _in_production_by_user(turns: Sequence[WatchedTurn]) -> dict[str, FixedSums]:
    return _earned(turns, _in_production)


def _by_user(turns: Sequence[WatchedTurn]) -> dict[str, FixedSums]:
    return _earned(turns, _value)


def _earned(turns: Sequence[WatchedTurn], measure: Measure) -> dict[str, FixedSums]:
    return sums([(turn.unit, value) for turn in turns if (value := measure(turn)) is not None])


def _version(turns: Sequence[WatchedTurn]) -> float | None:
    served = Counter(turn.version.version for turn in turns if turn.version is not None)
    return float(served.most_common(1)[0][0]) if served else None
