"""The cost of learning from an older policy's answers, and how much of it each correction saves.

    python -m bench staleness [--seeds 32] [--judged-seeds 160]

The policy that serves is 0, 2, 4 or 8 versions behind the one that learns (and an update is a version), under each
correction; all get the same number of turns of the same users. Quality is how much of what could be gained the
policy has gained at the end: 1 less what it still misses over what it missed at first. Paired seeds, bootstrap
intervals. Figures with a goal are measured on more seeds: with 32, the ratio's interval is a tenth wide to either
side."""

import argparse
import json
import multiprocessing
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from rich.progress import track

from bench.learning.feedback_loop import learn, settings_for, still_missed
from bench.learning.feedback_world import STREAMS
from bench.paired import interval
from bench.table import RESULTS, Row, report

SEEDS, JUDGED_SEEDS = 32, 160
BEHIND = (0, 2, 4, 8)
CORRECTIONS = ("tis", "none", "icepop", "geometric")
DEFAULT, JUDGED, GOAL = "tis", 4, 0.95
RATES = (0.006, 0.012)
STREAM = "noise"
STEPS, BATCHES = 160, 30


@dataclass(frozen=True)
class Run:
    correction: str
    behind: int
    rate: float
    seed: int


def quality(run: Run) -> float:
    stream = STREAMS[STREAM]
    settings = settings_for(
        run.seed, run.rate, {"advantage.baseline": "value", "objective.correction.method": run.correction}
    )
    learned = learn(stream, settings, STEPS, run.behind)
    before = learn(stream, settings, 1, learns=False)
    return 1 - still_missed(learned, BATCHES) / still_missed(before, BATCHES)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--judged-seeds", type=int, default=JUDGED_SEEDS)
    asked = parser.parse_args()
    runs = [Run(c, b, r, s) for s in range(asked.seeds) for r in RATES for c in CORRECTIONS for b in BEHIND]
    more = range(asked.seeds, asked.judged_seeds)
    runs += [Run(DEFAULT, b, r, s) for s in more for r in RATES for b in (0, JUDGED)]
    with multiprocessing.get_context("spawn").Pool() as pool:
        found = dict(track(pool.imap(_named, runs), "runs", total=len(runs)))
    (RESULTS / "staleness_runs.json").write_text(
        json.dumps([[r.correction, r.behind, r.rate, r.seed, round(q, 4)] for r, q in found.items()])
    )
    report("staleness", [row for rate in RATES for row in rows(found, rate, asked.seeds, asked.judged_seeds)])


def _named(run: Run) -> tuple[Run, float]:
    return run, quality(run)


def rows(found: dict[Run, float], rate: float, seeds: int, judged_seeds: int) -> Iterator[Row]:
    def of(correction: str, behind: int, seeds: int) -> np.ndarray:
        return np.array([found[Run(correction, behind, rate, seed)] for seed in range(seeds)])

    for correction in CORRECTIONS:
        for behind in BEHIND:
            count = max(seeds, judged_seeds) if (correction, behind) == (DEFAULT, JUDGED) else seeds
            fresh, stale = of(DEFAULT, 0, count), of(correction, behind, count)
            low, high = interval(stale - fresh)
            against = f"{DEFAULT} at 0 {stale.mean() - fresh.mean():+.3f} [{low:+.3f}, {high:+.3f}], {count} seeds"
            metric, ratio = f"{correction}, {behind} behind, rate {rate:g}", float(stale.mean() / fresh.mean())
            if correction == DEFAULT and behind == JUDGED:
                yield Row.at_least(metric, float(stale.mean()), "of the gain", against, ratio, GOAL)
            else:
                yield Row(metric, float(stale.mean()), "of the gain", against, ratio)


if __name__ == "__main__":
    main()
