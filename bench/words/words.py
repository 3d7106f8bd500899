"""Measure what words add to a number: how soon a taste that users tell is learned, and what bad words cost.

    python -m bench words [--seeds 0 1 2 3 4] [--updates 200]

A model of some thousand parameters that heeds what it is told in a request, the learner's own update, paired seeds. The
quality of a policy is how likely users accept its answers, as a share of the best; it has learned when it has gained 90
% of what the number alone gains in the end. There are four tastes to learn, one for each workload, or two, which the
number alone soon finds. Of two, users' words are also three in ten or all of them wrong, give away what only that
answer was to hold and that it was to be short, or come after every answer, again and again. Runs are merged by seed
into `bench/results/words_runs.json`."""

import argparse
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from rich.progress import track

from bench.paired import interval
from bench.table import RESULTS, Row, commit, report
from bench.words.told_loop import BATCH, EVERY, Run, learned
from bench.words.told_policy import made_to_heed
from bench.words.told_world import HONEST, MOODS, SILENT, Words

RUNS = RESULTS / "words_runs.json"
SEEDS, UPDATES, RATE, WEIGHT = 5, 200, 3e-3, 2.0
LAST = 10  # measurements whose mean is the end
SMOOTH = 3
GAINED = 0.9
NUMBER, TOLD = "the number alone", "told"
OF_FOUR = "four tastes, "
WAYS: dict[str, tuple[Words, float, int]] = {
    f"{OF_FOUR}{NUMBER}": (SILENT, 0.0, 4),
    f"{OF_FOUR}{TOLD}": (HONEST, WEIGHT, 4),
    NUMBER: (SILENT, 0.0, 2),
    **{name: (mood, WEIGHT, 2) for name, mood in MOODS.items()},
}
SOONER, COST = 0.5, 0.02
Curves = Mapping[str, Sequence[np.ndarray]]


def run(seed: int, updates: int) -> dict[str, Any]:
    policy = made_to_heed(seed)
    curves = {
        name: [round(each, 4) for each in learned(Run(words, weight, seed, updates, RATE, workloads), policy)]
        for name, (words, weight, workloads) in track(WAYS.items(), f"seed {seed}")
    }
    return {"seed": seed, "commit": commit(), "curves": curves}


def rows(runs: Sequence[Mapping[str, Any]]) -> Iterator[Row]:
    made = ", ".join(sorted({each["commit"] for each in runs}))
    curves = {way: [np.array(each["curves"][way]) for each in runs] for way in WAYS}
    for found in (sooner(curves, OF_FOUR), sooner(curves, ""), costs(curves)):
        for row in found:
            yield Row(**{**row.written(), "commit": made})  # type: ignore[arg-type]


def sooner(curves: Curves, tastes: str) -> Iterator[Row]:
    number, with_words = curves[f"{tastes}{NUMBER}"], curves[f"{tastes}{TOLD}"]
    seeds = f"{len(number)} seeds"
    levels = [curve[0] + GAINED * (end_of(curve) - curve[0]) for curve in number]
    alone = [turns_until(curve, level) for curve, level in zip(number, levels, strict=True)]
    told = [turns_until(curve, level) for curve, level in zip(with_words, levels, strict=True)]
    yield Row(f"{tastes}{NUMBER}: turns until 90 % of the gain", float(np.mean(alone)), "turns", seeds)
    logs = np.log(np.array(told) / np.array(alone))
    low, high = (math.exp(bound) for bound in interval(logs))
    against, ratio = f"{NUMBER} [{low:.2f}, {high:.2f}], {seeds}", math.exp(float(logs.mean()))
    yield Row.at_most(f"{tastes}{TOLD}: turns until then", float(np.mean(told)), "turns", against, ratio, SOONER)
    ends = float(np.mean([end_of(curve) for curve in number]))
    yield Row(f"{tastes}{NUMBER}: quality at the end", ends, "of the best", seeds)
    yield cost(f"{tastes}{TOLD}", number, with_words, 0.0)


def costs(curves: Curves) -> Iterator[Row]:
    for way in (way for way in MOODS if way != TOLD):
        yield cost(way, curves[NUMBER], curves[way], COST)
    for way in MOODS:
        pairs = zip(curves[NUMBER], curves[way], strict=True)
        lost = np.array([(alone - with_words).mean() for alone, with_words in pairs])
        low, high = interval(lost)
        against = f"{NUMBER} {lost.mean():+.3f} lost [{low:+.3f}, {high:+.3f}]"
        yield Row(f"{way}: quality on the way", float(np.mean(curves[way])), "of the best", against)


def cost(way: str, number: Sequence[np.ndarray], with_words: Sequence[np.ndarray], goal: float) -> Row:
    """Return the row of what words cost in the end; below 0 they gained."""
    lost = np.array([end_of(one) - end_of(other) for one, other in zip(number, with_words, strict=True)])
    low, high = interval(lost)
    against = f"cost {lost.mean():+.3f} [{low:+.3f}, {high:+.3f}], worst seed {lost.max():+.3f}"
    end = float(np.mean([end_of(curve) for curve in with_words]))
    return Row.at_most(f"{way}: quality at the end", end, "of the best", against, float(lost.mean()), goal)


def end_of(curve: np.ndarray) -> float:
    return float(curve[-LAST:].mean())


def turns_until(curve: np.ndarray, level: float) -> int:
    """Return after how many turns the quality, smoothed, was first at the level; all turns where it never was."""
    smooth = np.convolve(curve, np.ones(SMOOTH) / SMOOTH, mode="valid")
    reached = np.nonzero(smooth >= level)[0]
    measured = int(reached[0]) + SMOOTH // 2 if len(reached) else len(curve) - 1
    return BATCH * EVERY * max(measured, 1)


def known() -> list[dict[str, Any]]:
    """Return the runs that are written down already."""
    return list(json.loads(RUNS.read_text())) if RUNS.exists() else []


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=list(range(SEEDS)))
    parser.add_argument("--updates", type=int, default=UPDATES)
    asked = parser.parse_args()
    for seed in asked.seeds:
        made = run(seed, asked.updates)
        runs = sorted([*(each for each in known() if each["seed"] != seed), made], key=lambda each: each["seed"])
        RUNS.write_text(json.dumps(runs) + "\n")
    report("words", list(rows(known())))


if __name__ == "__main__":
    main()
