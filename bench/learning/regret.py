"""The cost of a way of learning to users until it has learned: seeded streams as in production, one answer a request.

    python -m bench regret [--seeds 32] [--only STREAM … | --rows]

Every way learns by the learner's own update, of a policy of some thousand parameters, at every learning rate. At
three horizons, over paired seeds: mean regret, its difference to the default's with an interval, and the probability
of one so high by chance, after Holm's correction for all ways and streams: a row holds where the default is
significantly better than that way. For a way, stream and horizon the rate counts that suits best: on the even seeds
for the odd ones, and the other way round, so that none is chosen by what it is judged by. Streams that are not run
again stay as they are; with `--rows` all do, and their rows are written anew."""

import argparse
import json
import multiprocessing
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from bench.learning.feedback_loop import BATCH
from bench.learning.feedback_world import STREAMS
from bench.learning.regret_picture import draw
from bench.learning.regret_run import DEFAULT, STEPS, WAYS, Run, regret
from bench.paired import holm, interval, likelihood_of_chance
from bench.table import RESULTS, Row, report

SEEDS = 32
LEARNING_RATES = (0.012, 0.024)
HORIZONS = (STEPS // 8, STEPS // 2, STEPS)  # steps of BATCH turns
BLOCK = 15  # steps whose mean is kept
CHANCE = 0.05
_CURVES = RESULTS / "regret_curves.json"
_PICTURE = Path(__file__).resolve().parents[2] / "docs" / "images" / "regret.png"
Rates = dict[str, list[list[float]]]  # learning rate, seed, block
Curves = dict[str, dict[str, Rates]]  # stream, way


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--rows", action="store_true")
    parser.add_argument("--only", nargs="+", choices=list(STREAMS), default=list(STREAMS))
    asked = parser.parse_args()
    curves: Curves = json.loads(_CURVES.read_text()) if _CURVES.exists() else {}
    if asked.rows:
        made = json.loads((RESULTS / "regret.json").read_text())
        by = {row["metric"]: row.get("commit") or made["commit"] for row in made["rows"]}
        report("regret", [replace(row, commit=by[row.metric]) for row in rows(curves)])
        return
    with multiprocessing.get_context("spawn").Pool() as pool, _progress() as progress:
        for stream in asked.only:
            curves[stream] = _learned(pool, progress, stream, asked.seeds)
            _CURVES.write_text(json.dumps(curves) + "\n")
    report("regret", list(rows(curves)))
    suited = {stream: {way: _suited(rates) for way, rates in ways.items()} for stream, ways in curves.items()}
    draw(suited, [horizon * BATCH for horizon in HORIZONS], BLOCK * BATCH, DEFAULT, _PICTURE)


def _learned(pool: Any, progress: Progress, stream: str, seeds: int) -> dict[str, Rates]:
    runs = [
        Run(way, stream, seed, rate)
        for way, learns in WAYS.items()
        for rate in (LEARNING_RATES if learns else LEARNING_RATES[:1])
        for seed in range(seeds)
    ]
    task = progress.add_task(f"{stream}: {seeds} seeds", total=len(runs))
    curves: dict[str, Rates] = {}
    for run, steps in zip(runs, pool.imap(regret, runs), strict=True):
        curves.setdefault(run.way, {}).setdefault(str(run.learning_rate), []).append(blocks(steps))
        progress.advance(task)
    return curves


def rows(curves: Curves) -> Iterator[Row]:
    for horizon in HORIZONS:
        means = {
            stream: {way: crossed(rates, horizon) for way, rates in ways.items()} for stream, ways in curves.items()
        }
        gains = {
            f"{stream}: {way}": found[way] - found[DEFAULT]
            for stream, found in means.items()
            for way in found
            if way != DEFAULT
        }
        chance = holm({name: likelihood_of_chance(-gain) for name, gain in gains.items()})
        turns = f"{horizon * BATCH:,} turns"
        for stream, found in means.items():
            yield Row(f"{stream}: {DEFAULT}, {turns}", float(found[DEFAULT].mean()), "regret a turn")
            for way in (way for way in found if way != DEFAULT):
                yield _row(f"{stream}: {way}", turns, found[way], gains[f"{stream}: {way}"], chance)


def _row(name: str, turns: str, regrets: np.ndarray, gain: np.ndarray, chance: dict[str, float]) -> Row:
    low, high = interval(gain)
    against = f"{DEFAULT} {gain.mean():+.4f} [{low:+.4f}, {high:+.4f}], of {len(gain)} seeds; p after Holm"
    p = chance[name]
    return Row.at_most(f"{name}, {turns}", float(regrets.mean()), "regret a turn", against, p, CHANCE)


def crossed(rates: Mapping[str, Sequence[Sequence[float]]], horizon: int) -> np.ndarray:
    """Return each seed's mean up to the horizon, at the rate that suits the other half of the seeds best."""
    means = {rate: np.array(seeds)[:, : horizon // BLOCK].mean(1) for rate, seeds in rates.items()}
    found = np.empty_like(next(iter(means.values())))
    for these, others in ((slice(0, None, 2), slice(1, None, 2)), (slice(1, None, 2), slice(0, None, 2))):
        found[these] = min(means.values(), key=lambda mean: float(mean[others].mean()))[these]
    return found


def _suited(rates: Rates) -> list[list[float]]:
    return min(rates.values(), key=lambda seeds: float(np.mean(seeds)))


def blocks(steps: list[float]) -> list[float]:
    return [round(float(block.mean()), 4) for block in np.array(steps).reshape(-1, BLOCK)]


def _progress() -> Progress:
    return Progress(TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())


if __name__ == "__main__":
    main()
