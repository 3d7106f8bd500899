"""The cost of hearing an hour later whether an answer lasted, to users over a working day, by ways to learn from it.

    python -m bench late_survival [--seeds 0 1 2 3 4] [--ways WAY ...]

Users take an answer at once, or not, and it lasts for an hour or not; a new version comes every minute. Regret is by
how much likelier the best answer would have been taken and have lasted, in the mean over the turns of eight hours. It
is compared, seed by seed, with that of a learner which hears of survival at once. Runs are kept in
`bench/results/late_survival_runs.json`, by way and seed, and not made again; rows are written of all that are there."""

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean

import numpy as np
from rich.progress import track

from bench.late.survival_loop import STEP_S, learn
from bench.late.survival_world import Known
from bench.learning.feedback_loop import settings_for
from bench.paired import mean_and_reach
from bench.table import RESULTS, Row, commit, report

SEEDS = range(5)
HOUR = round(3600 / STEP_S)  # steps
HOURS = 8
RATE, GOAL = 0.012, 1.15
RUNS = RESULTS / "late_survival_runs.json"
AT_ONCE, LATE, NEVER, WAITED = Known(None, 0.0), Known(0.0, float(HOUR)), Known(0.0, None), Known(None, float(HOUR))
ON_TIME = "on time"


@dataclass(frozen=True)
class Way:
    known: Known
    settings: Mapping[str, object] = field(default_factory=dict)


WIDE = {"admission.max_divergence": 1e9, "admission.min_ess": 0.0}
WAYS = {
    ON_TIME: Way(AT_ONCE),
    "never": Way(NEVER),
    "an hour late": Way(LATE),
    "an hour late, KTO": Way(LATE, {"admission.late": "kto"}),
    "an hour late, no bound": Way(LATE, WIDE),
    "an hour late, asymmetric": Way(LATE, {"admission.late": "asymmetric"}),
    "waited for": Way(WAITED),
    "waited for, no bound": Way(WAITED, WIDE),
    "waited for, asymmetric": Way(WAITED, {"admission.late": "asymmetric"}),
    "waited for, KTO": Way(WAITED, {"admission.late": "kto"}),
}
"""`an hour late`: a verdict at once, corrected by what lasted; `waited for`: no reward before that is known."""
DROPPED = {"an hour late, lagged": LATE, "an hour late, retroactive": LATE}
"""Ways that lost, whose code is gone: their rows stay as they were run."""
KNOWN = {name: way.known for name, way in WAYS.items()} | DROPPED
Runs = dict[str, dict[str, dict[str, object]]]  # way, seed: by hour, and the commit that ran


def regret(way: Way, seed: int) -> list[float]:
    """Return the regret a turn of each hour."""
    settings = settings_for(seed, RATE, {"advantage.baseline": "value", "users.max_share": 1.0, **way.settings})
    steps = learn(way.known, settings, HOURS * HOUR)
    return [round(float(hour.mean()), 5) for hour in np.array(steps).reshape(HOURS, HOUR)]


def rows(runs: Runs) -> Iterator[Row]:
    on_time = hours(runs, ON_TIME)
    for name in (name for name in KNOWN if name in runs):
        made = ", ".join(sorted({str(run["commit"]) for run in runs[name].values()}))
        found = hours(runs, name)
        seeds = sorted(found.keys() & on_time.keys())
        value = float(np.mean([found[seed] for seed in seeds]))
        if name == ON_TIME:
            yield Row(name, value, "regret a turn", f"{HOURS} hours, {len(seeds)} seeds", commit=made)
            continue
        against, ratio = compared([fmean(found[s]) / fmean(on_time[s]) for s in seeds])
        if KNOWN[name] is LATE:
            yield Row.at_most(name, value, "regret a turn", against, ratio, GOAL, made)
        else:
            yield Row(name, value, "regret a turn", against, ratio, commit=made)
        if KNOWN[name] is not NEVER:
            since = [fmean(found[s][1:]) / fmean(on_time[s][:-1]) for s in seeds]
            first = float(np.mean([found[seed][1:] for seed in seeds]))
            against, ratio = compared(since)
            yield Row(f"{name}: after the first hour", first, "regret a turn", against, ratio, commit=made)


def compared(ratios: Sequence[float]) -> tuple[str, float]:
    """Return what the ratios to learning on time were, in words, and their mean."""
    mean, reach = mean_and_reach(ratios)
    return f"{ON_TIME}: {mean:.3f} [{mean - reach:.3f}, {mean + reach:.3f}], {len(ratios)} seeds", mean


def hours(runs: Runs, way: str) -> dict[str, list[float]]:
    return {seed: run["hours"] for seed, run in runs[way].items()}  # type: ignore[misc]  # JSON


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=list(SEEDS))
    parser.add_argument("--ways", nargs="+", choices=list(WAYS), default=list(WAYS))
    asked = parser.parse_args()
    made: Runs = json.loads(RUNS.read_text()) if RUNS.exists() else {}
    jobs = [(seed, name) for seed in asked.seeds for name in asked.ways if str(seed) not in made.get(name, {})]
    for seed, name in track(jobs, "runs"):
        found = regret(WAYS[name], seed)
        runs: Runs = json.loads(RUNS.read_text()) if RUNS.exists() else {}
        runs.setdefault(name, {})[str(seed)] = {"hours": found, "commit": commit()}
        RUNS.write_text(json.dumps(runs, indent=1) + "\n")
    report("late_survival", list(rows(json.loads(RUNS.read_text()))))


if __name__ == "__main__":
    main()
