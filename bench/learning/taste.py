"""Measure what a model learns of a taste that depends on the request, against the best one style for everything.

    python -m bench taste [--seeds 3] [--updates 70]

In one process, by the learner's own update: written functions alone, each with what an honest user's feedback is worth.
The best style's share is exact (`simulator/tasks/one_style.py`), and counts as if all tests passed."""

import argparse
import statistics
from collections.abc import Iterator

import torch
from rich.progress import track

from bench.learning.poison import FINAL, TURNS, USUAL, Crowd, taught
from bench.table import Row, report
from simulator.tasks.one_style import ceiling
from simulator.tasks.taste import Taste


def rows(curves: list[list[float]]) -> Iterator[Row]:
    best, asked = float(ceiling(Taste())), f"{len(curves)} seeds, {len(curves[0]) * TURNS} functions each"
    starts, ends = ([statistics.fmean(part) for part in parts] for parts in _ends(curves))
    yield Row("the best style for everything, all tests passed", best, "share")
    yield Row("true quality of the first answers", statistics.fmean(starts), "share", asked)
    yield Row.at_least(
        f"true quality of the last {FINAL} updates",
        statistics.fmean(ends),
        "share",
        asked,
        statistics.fmean(ends),
        best,
    )
    yield Row("the same, the worst seed", min(ends), "share", asked)


def _ends(curves: list[list[float]]) -> tuple[list[list[float]], list[list[float]]]:
    return [curve[:2] for curve in curves], [curve[-FINAL:] for curve in curves]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--updates", type=int, default=70)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    seeds = track(range(asked.seeds), f"{asked.seeds} runs of {asked.updates} updates")
    report("taste", list(rows([taught(Crowd(0.0, USUAL), seed, asked.updates) for seed in seeds])))


if __name__ == "__main__":
    main()
