"""The ways to learn that `bench.learning.regret` finds best, in the whole service: what users miss until then.

    python -m bench loop [--ways NAME ...] [--seeds 3] [--first-seed 0] [--seconds 180]

Each run is a demo of its own: real service, learner, users. Regret is the share of sessions that end without a right
answer, a mean over its windows of time. Runs are kept one by one, so that the table can be made in pieces; the table
compares seeds that every way has, and says less than `bench.learning.regret`: few seeds, and one machine's luck in
each."""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from rich.progress import track

from bench.learning.regret_run import DEFAULT
from bench.paired import interval
from bench.table import RESULTS, Row, report

RUNS = RESULTS / "loop_runs.json"
WAYS = {
    DEFAULT: "value",
    "batch, whitened": "batch",
    "leave one out": "leave_one_out",
    "moving average": "ema",
    "beta tracker": "beta",
    "batch, centred": "centre",
}
"""`learner.advantage.baseline` of each, the three of the least regret first."""
Runs = dict[str, list[float]]  # true quality, window by window


def quality(way: str, seed: int, seconds: float) -> list[float]:
    """Return the true quality of a demo's windows. Raises CalledProcessError with its output where it has no report."""
    with tempfile.TemporaryDirectory(prefix="onward-loop-") as folder:
        command = [sys.executable, "-m", "onward", "demo", folder, "--seed", str(seed), "--seconds", str(seconds)]
        command += ["--set", f"learner.advantage.baseline={WAYS[way]}"]
        ended = subprocess.run(command, capture_output=True, text=True, check=False)
        written = Path(folder) / "report.json"
        if not written.exists():
            raise subprocess.CalledProcessError(ended.returncode, command, ended.stdout, ended.stderr)
        windows = json.loads(written.read_text())["windows"]
        return [window["true"] for window in windows if window["true"] is not None]


def rows(runs: Runs, ways: list[str], seconds: float) -> Iterator[Row]:
    seeds = [seed for seed in range(100) if all(_name(way, seed, seconds) in runs for way in ways)]
    if not seeds:
        return
    regrets = {way: np.array([1 - statistics.fmean(runs[_name(way, seed, seconds)]) for seed in seeds]) for way in ways}
    for way in ways:
        ends = [runs[_name(way, seed, seconds)][-1] for seed in seeds]
        against, ratio = None, None
        if way != DEFAULT:
            gain = regrets[way] - regrets[DEFAULT]
            low, high = interval(gain)
            against = f"{DEFAULT} {gain.mean():+.3f} [{low:+.3f}, {high:+.3f}], {len(seeds)} seeds"
            ratio = float(regrets[way].mean() / regrets[DEFAULT].mean())
        yield Row(f"{way}: regret of {seconds:.0f} s", float(regrets[way].mean()), "share", against, ratio)
        yield Row(f"{way}: true quality at the end", statistics.fmean(ends), "share")


def _name(way: str, seed: int, seconds: float) -> str:
    return f"{way}, {seconds:.0f} s, seed {seed}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ways", nargs="+", choices=list(WAYS), default=list(WAYS)[:3], metavar="NAME")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=180.0)
    asked = parser.parse_args()
    ways = list(dict.fromkeys([DEFAULT, *asked.ways]))
    runs: Runs = json.loads(RUNS.read_text()) if RUNS.exists() else {}
    seeds = range(asked.first_seed, asked.first_seed + asked.seeds)
    wanted = [(way, seed) for seed in seeds for way in ways if _name(way, seed, asked.seconds) not in runs]
    for way, seed in track(wanted, f"{len(wanted)} runs of {asked.seconds:.0f} s"):
        print(f"{time.strftime('%H:%M:%S')} {way}, seed {seed}", flush=True)
        runs[_name(way, seed, asked.seconds)] = quality(way, seed, asked.seconds)
        RUNS.write_text(json.dumps(runs) + "\n")
    report("loop", list(rows(runs, ways, asked.seconds)))


if __name__ == "__main__":
    main()
