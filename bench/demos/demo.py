"""The demo of the README over seeds, each a whole service with its learner and its users, as rows with their bars.

    python -m bench demo [--seeds 5] [--shift] [--engine local|sglang] [--seconds S]

Runs are merged by name into `bench/results/demo_runs.json`, so that seeds can be run one by one; the rows of
`bench/results/demo.json` are of all of them, and name the commits that ran.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

from rich.progress import track

from bench.table import RESULTS, Row, commit, report

RUNS = RESULTS / "demo_runs.json"
KEPT = (
    *("seed", "seconds", "rate", "quality_start", "quality_at_90_s", "quality_at_150_s", "quality_end", "quality_rise"),
    *("reported_accept_end", "feedback_to_served_p50_s", "feedback_to_served_p99_s", "versions", "swaps", "sessions"),
    *("turns", "failed_requests", "lost_turns", "lost_outcomes", "share_learned_from", "quality_before_shift"),
    *("quality_after_shift", "recovered_after_s", "recovered_share", "learner_idle_share", "probe_share"),
)
MOST_AT_START, LEAST_AT_90_S, LEAST_AT_150_S = 0.35, 0.60, 0.70
MOST_RECOVERY_S = 90.0
MEANS = {
    "quality_start": "share",
    "quality_end": "share",
    "feedback_to_served_p50_s": "s",
    "learner_idle_share": "share",
    "probe_share": "share",
}
"""What has a row as the mean of the runs that have it, and its unit; older runs have neither of the last two."""
LEAST_SEEDS = 0.8  # of the seeds reach a bar: four of five
Run = dict[str, Any]


def run(seed: int, *, shift: bool, engine: str, seconds: float | None) -> Run:
    """Run a demo and return its report. Raises CalledProcessError with the demo's output where there is none."""
    with tempfile.TemporaryDirectory(prefix="onward-demo-") as folder:
        command = [sys.executable, "-m", "onward", "demo", folder, "--seed", str(seed), "--engine", engine]
        command += ["--shift"] if shift else []
        command += [] if seconds is None else ["--seconds", str(seconds)]
        ended = subprocess.run(command, capture_output=True, text=True, check=False)
        written = Path(folder) / "report.json"
        if not written.exists():
            raise subprocess.CalledProcessError(ended.returncode, command, ended.stdout, ended.stderr)
        told = json.loads(written.read_text())
    kind = f"{engine}{', shift' if shift else ''}"
    return {"name": f"{kind}, seed {seed}", "kind": kind, "commit": commit()} | {name: told.get(name) for name in KEPT}


def rows(runs: Sequence[Run]) -> Iterator[Row]:
    """Yield, for each kind of demo, its bars as shares of the seeds that reach them, then means."""
    for kind in sorted({each["kind"] for each in runs}):
        of_kind = [each for each in runs if each["kind"] == kind]
        made = partial(_row, of_kind, f"{kind}, {len(of_kind)} seeds")
        if "shift" in kind:
            yield made(
                "nine tenths again within 90 s", _reaches("recovered_after_s", most=MOST_RECOVERY_S), LEAST_SEEDS
            )
        elif kind == "local":
            yield made("at most 0.35 at the start", _reaches("quality_start", most=MOST_AT_START), LEAST_SEEDS)
            yield made("at least 0.60 at 90 s", _reaches("quality_at_90_s", least=LEAST_AT_90_S), LEAST_SEEDS)
            yield made("at least 0.70 at 150 s", _reaches("quality_at_150_s", least=LEAST_AT_150_S), LEAST_SEEDS)
        yield made("nothing failed or lost", lambda each: not _lost(each), 1.0)
        for name, unit in MEANS.items():
            having = [each for each in of_kind if each.get(name) is not None]
            if having:
                yield Row(f"{kind}: {name}", fmean(each[name] for each in having), unit, commit=_commits(having))


def _row(runs: Sequence[Run], kind: str, bar: str, reached: Callable[[Run], bool], goal: float) -> Row:
    share = fmean(reached(each) for each in runs)
    return Row(f"{kind}: {bar}", share, "of the seeds", "all seeds", share, goal, share >= goal, _commits(runs))


def _reaches(name: str, least: float = float("-inf"), most: float = float("inf")) -> Callable[[Run], bool]:
    return lambda each: each[name] is not None and least <= each[name] <= most


def _lost(run: Run) -> int:
    return int(run["failed_requests"] + run["lost_turns"] + run["lost_outcomes"])


def _commits(runs: Sequence[Run]) -> str:
    return ", ".join(sorted({each["commit"] for each in runs}))


def known() -> list[Run]:
    """Return the runs that are written down already."""
    return list(json.loads(RUNS.read_text())) if RUNS.exists() else []


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=None)
    parser.add_argument("--shift", action="store_true", help="the team's taste changes at 100 s")
    parser.add_argument("--engine", choices=["local", "sglang"], default="local")
    options = parser.parse_args()
    seeds = range(options.first_seed, options.first_seed + options.seeds)
    for seed in track(seeds, f"{options.seeds} demos"):
        made = run(seed, shift=options.shift, engine=options.engine, seconds=options.seconds)
        runs = [*(each for each in known() if each["name"] != made["name"]), made]
        RUNS.write_text(json.dumps(sorted(runs, key=lambda each: each["name"]), indent=1) + "\n")
    report("demo", list(rows(known())))


if __name__ == "__main__":
    main()
