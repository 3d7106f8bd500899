"""A headline beside the best of the last landings: what slides a little with each is seen by nobody who looks at two.

Of each figure the best is looked for among the headlines that the last ten landings had, as far as they are of the same
processors. Two rounds of one commit lie .06 of the figure apart in the median of the committed ratios (nine of ten .23
at most, the widest .39), so the middles of two headlines differ by .13 in one of twenty pairs of the same code: .15 is
allowed, and the rounds of both must lie apart. Seconds have no floor in their run that would be slower in a slow hour:
of these a quarter is allowed, which a slow hour exceeds, too (a commit that had landed took .048 s a turn where another
had taken .030 on processors of the same name). So this tells where to look, and is no error: beside a commit is the
proof."""

import json
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.headline.figures import FIGURES
from bench.landings import landings

FILE = "bench/results/headline.json"
LANDINGS = 10
ALLOWED = 0.15
ALLOWED_WITHOUT_FLOOR = 0.25
Headline = Mapping[str, Any]


def against_past(root: Path) -> Iterator[str]:
    """Yield the figures of the headline that are worse than the best of the last landings. Raises BadTable."""
    now = json.loads((root / FILE).read_text())
    return slid(now, [past for landing in landings(root)[:LANDINGS] if (past := _at(landing, root)) is not None])


def slid(now: Headline, past: Sequence[Headline]) -> Iterator[str]:
    """Yield each figure that is worse than the best of the past on these processors, and how."""
    same = [each for each in past if _processors(each) == _processors(now)]
    for figure in FIGURES:
        row = _row(now, figure.metric)
        known = [(found, each["commit"]) for each in same if (found := _row(each, figure.metric)) is not None]
        if row is None or not known:
            continue
        best, commit = (max if figure.better == "more" else min)(known, key=lambda one: float(one[0]["value"]))
        allowed = ALLOWED if figure.is_ratio else ALLOWED_WITHOUT_FLOOR
        if figure.is_worse(row["spread"], best["spread"], allowed):
            yield f"{figure.metric} is {row['value']:.3g}, and was {best['value']:.3g} at {commit}"


def _row(headline: Headline, metric: str) -> Mapping[str, Any] | None:
    return next((row for row in headline["rows"] if row["metric"] == metric), None)


def _processors(headline: Headline) -> str:
    """Return the processors of a machine; its kernel and Python change without it."""
    return str(headline["machine"]).partition(", Linux")[0]


def _at(commit: str, root: Path) -> Headline | None:
    """Return the headline that a commit had; None for one of before there was any."""
    git = ["git", "show", f"{commit}:{FILE}"]
    told = subprocess.run(git, cwd=root, capture_output=True, text=True, check=False)
    if told.returncode:
        return None
    found: Headline = json.loads(told.stdout)
    return found
