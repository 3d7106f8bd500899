"""Agreement of a judge with the outcomes of the same turns: pure functions of pairs."""

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

import msgspec

from core.events import Outcome
from core.reward_spec import Role
from scoring.rewards.amendments import standing
from scoring.truth import verdict, word_of

LEAST: Final = 50
"""Pairs below which figures say nothing."""
BINS: Final = 10
THRESHOLD: Final = 0.5
ALL: Final = "all"


class JudgedTurn(msgspec.Struct, frozen=True):
    """A turn's judgement, 0 to 1, and whether the turn turned out good."""

    judged: float
    good: bool


class Bin(msgspec.Struct, frozen=True):
    """The judgements from `start` up to `end`, which only the last bin includes."""

    start: float
    end: float
    pairs: int
    judged: float | None  # mean; None of no pairs
    good: float | None  # share


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    accuracy: float
    kappa: float | None  # None where chance alone agrees always
    brier: float
    brier_of_base_rate: float
    good: float  # share that turned out good
    judged: float  # mean judgement
    calibration: tuple[Bin, ...]


class Agreement(msgspec.Struct, frozen=True, kw_only=True):
    """The agreement of one version of the judge with outcomes of one name, or of all. `figures` is None below LEAST."""

    version: str
    against: str
    pairs: int
    figures: Figures | None


def agreements(turns: Iterable[Sequence[Outcome]], name: str, roles: Mapping[str, Role]) -> list[Agreement]:
    """Return agreements by version, first with all outcomes together, then with those of each name.

    `turns`: all outcomes of each judged turn; `name`: of the judge's outcomes; `roles`: of all others."""
    pairs: defaultdict[tuple[str, str], list[JudgedTurn]] = defaultdict(list)
    for outcomes in turns:
        for version, against, pair in _pairs(outcomes, name, roles):
            pairs[version, against].append(pair)
    order = (ALL, *roles)
    keys = sorted(pairs, key=lambda key: (key[0], order.index(key[1])))
    return [
        Agreement(
            version=version,
            against=against,
            pairs=len(pairs[version, against]),
            figures=figures(pairs[version, against]) if len(pairs[version, against]) >= LEAST else None,
        )
        for version, against in keys
    ]


def _pairs(outcomes: Sequence[Outcome], name: str, roles: Mapping[str, Role]) -> Iterator[tuple[str, str, JudgedTurn]]:
    stand = [entry.outcome for entry in standing(outcomes)]
    told = {
        outcome.name: float(outcome.value)
        for outcome in stand
        if outcome.source != "judge" and isinstance(outcome.value, bool | int | float)
    }
    words = {each: word_of(roles.get(each), value) for each, value in told.items()}
    words[ALL] = verdict(told, roles)
    for outcome in stand:
        if outcome.source == "judge" and outcome.name == name and isinstance(outcome.value, int | float):
            for against, good in words.items():
                if good is not None:
                    yield outcome.source_version or "unknown", against, JudgedTurn(float(outcome.value), good)


def figures(pairs: Sequence[JudgedTurn]) -> Figures:
    """Return the figures of at least one pair."""
    good = math.fsum(pair.good for pair in pairs) / len(pairs)
    return Figures(
        accuracy=accuracy(pairs),
        kappa=kappa(pairs),
        brier=brier(pairs),
        brier_of_base_rate=good * (1 - good),
        good=good,
        judged=math.fsum(pair.judged for pair in pairs) / len(pairs),
        calibration=calibration(pairs),
    )


def accuracy(pairs: Sequence[JudgedTurn]) -> float:
    """Return the share of pairs in which a good turn was judged at least a half, or a bad turn lower."""
    return sum((pair.judged >= THRESHOLD) == pair.good for pair in pairs) / len(pairs)


def kappa(pairs: Sequence[JudgedTurn]) -> float | None:
    """Return the agreement beyond chance, (p_o - p_e) / (1 - p_e), at the same threshold.

    1 is full agreement, 0 that of two who know nothing of each other (J. Cohen, A coefficient of agreement for
    nominal scales, Educational and Psychological Measurement 20, 1960). None when both always say the same one word:
    p_e is 1."""
    said = sum(pair.judged >= THRESHOLD for pair in pairs) / len(pairs)
    good = sum(pair.good for pair in pairs) / len(pairs)
    by_chance = said * good + (1 - said) * (1 - good)
    return None if by_chance == 1 else (accuracy(pairs) - by_chance) / (1 - by_chance)


def brier(pairs: Sequence[JudgedTurn]) -> float:
    """Return the mean squared distance of a judgement from what happened, 1 or 0; 0 is perfect.

    Always saying the share of good turns gives that share times its complement (G. W. Brier, Verification of forecasts
    expressed in terms of probability, Monthly Weather Review 78, 1950, in the form for two cases)."""
    return math.fsum((pair.judged - pair.good) ** 2 for pair in pairs) / len(pairs)


def calibration(pairs: Sequence[JudgedTurn], bins: int = BINS) -> tuple[Bin, ...]:
    """Return a reliability table: of the turns with about the same judgement, the share that turned out good.

    See M. H. DeGroot and S. E. Fienberg, The comparison and evaluation of forecasters, The Statistician 32, 1983. Bins
    have equal widths; judgements on a bound count above it."""
    found: list[list[JudgedTurn]] = [[] for _ in range(bins)]
    for pair in pairs:
        found[min(int(pair.judged * bins), bins - 1)].append(pair)
    return tuple(_bin(number / bins, (number + 1) / bins, inside) for number, inside in enumerate(found))


def _bin(start: float, end: float, inside: Sequence[JudgedTurn]) -> Bin:
    if not inside:
        return Bin(start, end, 0, None, None)
    judged = math.fsum(pair.judged for pair in inside) / len(inside)
    return Bin(start, end, len(inside), judged, sum(pair.good for pair in inside) / len(inside))
