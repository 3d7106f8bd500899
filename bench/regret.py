"""What a way of learning costs users until it has learned: seeded streams as production has them, one answer a request.

    python -m bench.regret [--seeds 32] [--only STREAM …]

Every way learns by the learner's own update, of a policy of some thousand parameters, with the learning rate that
suited it best on seeds that are not compared. At three horizons, over paired seeds: mean regret, its difference to the
default's with an interval, and the probability of one so low by chance, after Holm's correction for all ways and
streams. Streams that are not run again stay as they are.
"""

import argparse
import json
import multiprocessing
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from bench.feedback_loop import BATCH
from bench.feedback_world import STREAMS
from bench.paired import holm, interval, likelihood_of_chance
from bench.regret_picture import draw
from bench.regret_run import DEFAULT, STEPS, WAYS, Run, regret
from bench.table import RESULTS, Row, report

SEEDS = 32
TUNING_SEEDS = range(1000, 1004)
LEARNING_RATES = (0.003, 0.006, 0.012, 0.024, 0.048)
HORIZONS = (STEPS // 8, STEPS // 2, STEPS)  # steps of BATCH turns
BLOCK = 10  # steps whose mean is kept
CHANCE = 0.05
_CURVES = RESULTS / "regret_curves.json"
_PICTURE = Path(__file__).resolve().parent.parent / "docs" / "images" / "regret.png"
Curves = dict[str, dict[str, list[list[float]]]]  # stream, way, seed, block


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--only", nargs="+", choices=list(STREAMS), default=list(STREAMS))
    asked = parser.parse_args()
    rates, curves = _read()
    with multiprocessing.get_context("spawn").Pool() as pool, _progress() as progress:
        for stream in asked.only:
            rates[stream] = _tuned(pool, progress, stream)
            runs = [Run(way, stream, seed, rates[stream][way]) for way in WAYS for seed in range(asked.seeds)]
            lost = _all(pool, progress, f"{stream}: {asked.seeds} seeds", runs)
            curves[stream] = {way: [_blocks(lost[run]) for run in runs if run.way == way] for way in WAYS}
            _CURVES.write_text(json.dumps({"rates": rates, "curves": curves}) + "\n")
    report("regret", list(rows(curves)))
    draw(curves, [horizon * BATCH for horizon in HORIZONS], BLOCK * BATCH, DEFAULT, _PICTURE)


def _tuned(pool: Any, progress: Progress, stream: str) -> dict[str, float]:
    """Of each way, the rate with the least regret."""
    runs = [Run(way, stream, seed, rate) for way in WAYS for rate in LEARNING_RATES for seed in TUNING_SEEDS]
    lost = _all(pool, progress, f"{stream}: learning rates", runs)

    def mean(way: str, rate: float) -> float:
        return float(np.mean([lost[run] for run in runs if (run.way, run.learning_rate) == (way, rate)]))

    return {way: min(LEARNING_RATES, key=lambda rate: mean(way, rate)) for way in WAYS}


def _all(pool: Any, progress: Progress, what: str, runs: Sequence[Run]) -> dict[Run, list[float]]:
    task = progress.add_task(what, total=len(runs))
    found = {}
    for run, lost in pool.imap_unordered(_timed, runs):
        found[run] = lost
        progress.advance(task)
    return found


def _timed(run: Run) -> tuple[Run, list[float]]:
    return run, regret(run)


def rows(curves: Curves) -> Iterator[Row]:
    for horizon in HORIZONS:
        means = {stream: _means(ways, horizon) for stream, ways in curves.items()}
        gains = {
            f"{stream}: {way}": found[way] - found[DEFAULT]
            for stream, found in means.items()
            for way in found
            if way != DEFAULT
        }
        chance = holm({name: likelihood_of_chance(gain) for name, gain in gains.items()})
        turns = f"{horizon * BATCH:,} turns"
        for stream, found in means.items():
            yield Row(f"{stream}: {DEFAULT}, {turns}", float(found[DEFAULT].mean()), "regret a turn")
            for way in (way for way in found if way != DEFAULT):
                yield _row(f"{stream}: {way}", turns, found[way], gains[f"{stream}: {way}"], chance)


def _row(name: str, turns: str, regrets: np.ndarray, gain: np.ndarray, chance: dict[str, float]) -> Row:
    low, high = interval(gain)
    against = f"{DEFAULT} {gain.mean():+.4f} [{low:+.4f}, {high:+.4f}], of {len(gain)} seeds; p after Holm"
    p = chance[name]
    return Row.at_least(f"{name}, {turns}", float(regrets.mean()), "regret a turn", against, p, CHANCE)


def _means(ways: dict[str, list[list[float]]], horizon: int) -> dict[str, np.ndarray]:
    """By way, each seed's mean up to the horizon."""
    return {way: np.array(seeds)[:, : horizon // BLOCK].mean(1) for way, seeds in ways.items()}


def _read() -> tuple[dict[str, dict[str, float]], Curves]:
    if not _CURVES.exists():
        return {}, {}
    kept = json.loads(_CURVES.read_text())
    return kept["rates"], kept["curves"]


def _blocks(steps: list[float]) -> list[float]:
    return [round(float(block.mean()), 5) for block in np.array(steps).reshape(-1, BLOCK)]


def _progress() -> Progress:
    return Progress(TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())


if __name__ == "__main__":
    main()
