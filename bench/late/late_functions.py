"""What it costs a pretrained model's users that whether an answer was right is known long after the answer.

    python -m bench late_functions [--ways WAY ...] [--turns 224] [--late 64] [--rate 1e-3] [--seed 0]

Each way is the service of `make demo MODEL=smollm2`, with users who take what passes their tests and turn down the
rest, as in `function_words`: 16 functions a version, so that the machine's speed decides nothing. They say so at once,
or once 64 more answers have come: four updates' turns, after which the answer is some five versions old. What is not
known by the end is never said. Late outcomes are learned from by the defaults, which leave out only what diverged, or
by asymmetric clipping of all that more than one version was released after.

Regret is the share of answers that did not pass. It can hardly be more than where nothing is learned: that ratio has a
row, too, and where it is within the goal as well, there were too few turns to tell, and the goal does not hold. Runs
are merged by way and seed into `bench/results/late_functions_runs.json`, as they end."""

import argparse
import asyncio
import json
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from bench.engines.start import started
from bench.table import RESULTS, Row, commit, report
from bench.words.function_words import BATCH, taught
from onward.commands.demo import PRETRAINED_NAME, as_options, pretrained_settings
from simulator.lessons.lesson import Pace, Plan

RUNS = RESULTS / "late_functions_runs.json"
GOAL = 1.15
LAST = 64
ON_TIME = "on time"
BEHIND = 1  # versions released since; more than what is heard of at once has
KEPT = ("right_start", "right_end", "taught", "failed_requests", "lost_outcomes")
Run = dict[str, Any]


@dataclass(frozen=True)
class Way:
    is_late: bool
    settings: Mapping[str, str] = field(default_factory=dict)


CLIPPED = {
    "ONWARD_LEARNER__ADMISSION__LATE": "asymmetric",
    "ONWARD_LEARNER__ADMISSION__MAX_VERSIONS_BEHIND": str(BEHIND),
}
WAYS = {ON_TIME: Way(False), "late": Way(True), "late, asymmetric": Way(True, CLIPPED)}


def run(name: str, asked: argparse.Namespace, directory: Path) -> Run:
    way, service = WAYS[name], directory / "service"
    service.mkdir(parents=True)
    settings = {**pretrained_settings(asked.seed), **way.settings}
    settings |= {f"ONWARD_LEARNER__BATCH__{each}": str(BATCH) for each in ("TURNS", "MIN_TURNS")}
    settings["ONWARD_LEARNER__OPTIMIZER__LEARNING_RATE"] = str(asked.rate)
    late = asked.late if way.is_late else 0
    pace = Pace(asked.turns, BATCH, ahead=2 * BATCH + late, late=late)
    with started(service, time.monotonic(), as_options(settings)):
        url = json.loads((service / "service.json").read_text())["urls"][0]
        plan = Plan((url,), asked.seconds, asked.seed, asked.examined, model=PRETRAINED_NAME, pace=pace)
        told = asyncio.run(taught(plan, directory / "report", says_why=False))
    updates = told["updates"]
    return {
        "way": name,
        "seed": asked.seed,
        "rate": asked.rate,
        "late": late,
        "commit": commit(),
        **{figure: told[figure] for figure in KEPT},
        "updates": len(updates),
        "divergence": [round(each.get("divergence", 0.0), 4) for each in updates],
        "behind": [each.get("versions_behind_max", 0) for each in updates],
        "late_turns": sum(each.get("late_turns", 0) for each in updates),
        "dropped": {key: sum(each.get(key, 0) for each in updates) for key in dropped(updates)},
        "seconds": told["seconds"],
        "passed": [right for _, _, right in told["curve"]],
        "versions": [version for _, version, _ in told["curve"]],
    }


def dropped(updates: Sequence[Mapping[str, float]]) -> list[str]:
    return sorted({name for each in updates for name in each if name.startswith("dropped_")})


def rows(runs: Sequence[Run]) -> Iterator[Row]:
    for on_time in (each for each in runs if each["way"] == ON_TIME):
        seed = on_time["seed"]
        for late in (each for each in runs if each["way"] != ON_TIME and each["seed"] == seed):
            made = ", ".join(sorted({on_time["commit"], late["commit"]}))
            for row in compared(on_time, late):
                yield replace(row, metric=f"seed {seed}, {late['way']}: {row.metric}", commit=made)


def compared(on_time: Run, late: Run) -> Iterator[Row]:
    """Yield what lateness costs. The goal is met only where it would not be had nothing been learned."""
    both, wait = min(len(each["passed"]) for each in (on_time, late)), late["late"]
    regret, never = failed(on_time["passed"][:both]), untaught([on_time, late])
    cost = beside(f"failed of {both}", failed(late["passed"][:both]), regret)
    assert cost.ratio is not None
    could_miss = never / regret > GOAL
    metric = cost.metric if could_miss else f"{cost.metric} (too few turns to tell)"
    yield replace(cost, metric=metric, goal=GOAL, holds=could_miss and cost.ratio <= GOAL)
    yield beside("failed of as many, had nothing been learned", never, regret)
    before, value = failed(on_time["passed"][: both - wait]), failed(late["passed"][wait:both])
    yield beside(f"failed after the first {wait}, of which nobody can know", value, before)
    before, value = (failed(each["passed"][both - LAST : both]) for each in (on_time, late))
    yield beside(f"failed of the last {LAST}", value, before)
    if late["right_end"] is not None and on_time["right_end"] is not None:
        yield Row("right held-out, at the end", late["right_end"], "share", f"{ON_TIME} {on_time['right_end']:.3f}")
    trained = late["late_turns"] / late["updates"] / BATCH
    yield Row("turns learned from that trained by asymmetric clipping", trained, "share")


def beside(metric: str, value: float, on_time: float) -> Row:
    return Row(metric, value, "share", f"{ON_TIME} {on_time:.3f}", value / on_time)


def failed(passed: Sequence[int]) -> float:
    return 1 - sum(passed) / len(passed)


def untaught(runs: Sequence[Run]) -> float:
    """Return the share of the first version's answers that failed."""
    answers = [each for run in runs for each in zip(run["versions"], run["passed"], strict=True)]
    first = min(version for version, _ in answers)
    return failed([right for version, right in answers if version == first])


def known() -> list[Run]:
    """Return the runs that are written down already."""
    return list(json.loads(RUNS.read_text())) if RUNS.exists() else []


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ways", nargs="*", choices=list(WAYS), default=list(WAYS), help="none: only rows")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--turns", type=int, default=224, help="of teaching")
    parser.add_argument("--late", type=int, default=4 * BATCH, help="answers between one and what is said of it")
    parser.add_argument("--seconds", type=float, default=3600.0, help="of teaching at most")
    parser.add_argument("--rate", type=float, default=1e-3, help="of learning")
    parser.add_argument("--examined", type=int, default=96, help="held-out functions, before and after")
    asked = parser.parse_args()
    for name in asked.ways:
        with tempfile.TemporaryDirectory(prefix="onward-late-functions-") as parent:
            made = run(name, asked, Path(parent))
        others = [each for each in known() if (each["way"], each["seed"]) != (name, asked.seed)]
        runs = sorted([*others, made], key=lambda each: (each["seed"], list(WAYS).index(each["way"])))
        RUNS.write_text(json.dumps(runs, indent=1) + "\n")
    report("late_functions", list(rows(known())))


if __name__ == "__main__":
    main()
