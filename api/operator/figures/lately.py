"""Whether the newest turns are rewarded as well as the best that came before them."""

import math
from collections import Counter
from collections.abc import Sequence
from datetime import datetime, timedelta
from statistics import fmean
from typing import Any, Literal, TypeVar

from api.operator.figures.comparison import Comparison, Rewarded, compare
from core.ids import Namespace
from core.store.newest.curves import Worth
from core.store.work import View

_BLOCK, _LEAST_BLOCK = 300, 100  # turns that are looked at together
MOST = 10 * _BLOCK
"""Turns that are looked at, without those of long ago."""
NEEDED = 2 * _LEAST_BLOCK
"""Rewarded turns, before anything is said."""
_AGO = (timedelta(hours=1), timedelta(days=1))
Turn = TypeVar("Turn", bound=Rewarded)


def lately(view: View, namespace: Namespace, now: datetime) -> dict[str, Any]:
    """Return how the newest turns compare with earlier ones: with those just before, and with an hour and a day ago.

    All count by the reward they were first given, so that none has had more time than another. `best` are the earlier
    turns that show a fall most surely, if any does, else those that were rewarded best, each workload held against
    itself. `trend` says how the newer half of the newest turns stands to the older half: `falls`, `rises`, or
    `unclear`."""
    newest = view.curves.first_worth(namespace, MOST)
    size = min(_BLOCK, len(newest) // 2)
    before = [view.curves.first_worth(namespace, size, before=now - ago) for ago in _AGO] if size else []
    found = against_the_best(newest, [then for then in before if _is_earlier(then, newest, size)])
    if found is None:
        return {"verdict": "too early", "turns": len(newest), "needed": NEEDED}
    comparison, best = found
    return {
        "verdict": comparison.verdict,
        "trend": _trend(newest[:size]),
        "needed": NEEDED,
        "difference": comparison.difference,
        "low": comparison.low,
        "high": comparison.high,
        **_described(newest[:size]),
        "best": _described(best),
    }


def _trend(newest: Sequence[Turn]) -> Literal["falls", "rises", "unclear"]:
    half = len(newest) // 2
    match compare(newest[:half], newest[half:]).verdict:
        case "worse":
            return "falls"
        case "better":
            return "rises"
    return "unclear"


def _is_earlier(then: Sequence[Worth], newest: Sequence[Worth], size: int) -> bool:
    return len(then) == size and then[0].decided_at < newest[-1].decided_at


def against_the_best(
    newest: Sequence[Turn], long_ago: Sequence[Sequence[Turn]] = ()
) -> tuple[Comparison, Sequence[Turn]] | None:
    """Compare the first of these turns, the newest first, with each block of the others, and with those of long ago.

    Returns one comparison, and whom it is with; None: too few turns to say."""
    size = min(_BLOCK, len(newest) // 2)
    if size < _LEAST_BLOCK:
        return None
    recent, *earlier = (newest[start : start + size] for start in range(0, len(newest) - size + 1, size))
    earlier += long_ago
    found = [(compare(recent, each, looks=len(earlier)), each) for each in earlier]
    fallen = [each for each in found if each[0].verdict == "worse"]
    if fallen:
        return min(fallen, key=lambda each: each[0].high or 0.0)
    return min(found, key=_how_good)


def _how_good(each: tuple[Comparison, Sequence[Rewarded]]) -> float:
    """Return how the newest turns stand to these, the least first: to those that cannot be compared last."""
    return math.inf if each[0].difference is None else each[0].difference


def _mean(turns: Sequence[Rewarded]) -> float:
    return fmean(turn.value for turn in turns)


def _described(turns: Sequence[Worth]) -> dict[str, Any]:
    """Return the turns' mean reward, when they were rewarded, and by which versions they were answered."""
    versions = Counter(turn.version for turn in turns if turn.version is not None)
    return {
        "turns": len(turns),
        "mean": _mean(turns),
        "from": min(turn.decided_at for turn in turns),
        "to": max(turn.decided_at for turn in turns),
        "versions": [min(versions), max(versions)] if versions else None,
        "version": versions.most_common(1)[0][0] if versions else None,
    }
