"""The whole loop on tasks that nobody here wrote: what a pretrained model learns of held-out questions.

    python -m bench reasoning [--tasks gcd syllogism basic_arithmetic] [--minutes 10] [--seed 0]

It needs `make smollm2`, and reasoning-gym: `make reasoning`. For each task a service of
its own starts with the settings of `make demo MODEL=smollm2`. Users ask for `--minutes` and say whether an answer was
right by the task's own scorer; before and after that the same held-out questions are asked at temperature 1. Runs are
merged by name into `bench/results/reasoning_runs.json`. A row holds where the 95 % interval of the gain lies above 0;
beside it stands what one answer to all questions would get."""

import argparse
import asyncio
import json
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from bench.public_tasks.reasoning_tasks import TASKS, ReasoningTask
from bench.table import RESULTS, Row, commit, report
from core.provenance import made_by
from onward.commands.demo import PRETRAINED_NAME, pretrained_settings, running_service
from simulator.lessons.lesson import LessonOptions
from simulator.lessons.run import run_lesson

RUNS = RESULTS / "reasoning_runs.json"
KEPT = (
    *("seed", "seconds", "seconds_taught", "held_out", "right_start", "right_end", "gain", "taught", "turns"),
    *("feedback_to_served_p50_s", "feedback_to_served_p99_s", "versions", "swaps"),
    *("failed_requests", "lost_turns", "lost_outcomes"),
)
Run = dict[str, Any]


def run(name: str, seed: int, minutes: float, examined: int) -> Run:
    task = ReasoningTask(name)
    with (
        tempfile.TemporaryDirectory(prefix="onward-reasoning-") as folder,
        running_service(Path(folder) / "service", pretrained_settings(seed)) as urls,
    ):
        plan = LessonOptions(tuple(urls), minutes * 60, seed, examined, model=PRETRAINED_NAME)
        told = asyncio.run(run_lesson(plan, task, None, Path(folder), made_by("python -m bench reasoning")))
    kept = {figure: told[figure] for figure in KEPT}
    return {"name": f"{name}, seed {seed}", "task": name, "commit": commit(), **kept} | {
        "one_answer": task.commonest(examined, seed)
    }


def rows(runs: Sequence[Run]) -> Iterator[Row]:
    for each in runs:
        name, made, low = each["name"], each["commit"], each["gain"][0]
        asked = f"{each['held_out']} held-out questions, {each['taught']} taught in {each['seconds_taught']:.0f} s"
        yield Row(f"{name}: right at the start", each["right_start"], "share", asked, commit=made)
        yield Row(f"{name}: right at the end", each["right_end"], "share", asked, commit=made)
        yield Row(f"{name}: one answer to all", each["one_answer"], "share", asked, commit=made)
        yield Row(f"{name}: lower end of the gain's 95 % interval", low, "share", asked, low, 0.0, low > 0, made)
        lost = each["failed_requests"] + each["lost_turns"] + each["lost_outcomes"]
        yield Row(f"{name}: failed or lost", lost, "records", None, lost, 0, lost == 0, made)


def known() -> list[Run]:
    """Return the runs that are written down already."""
    return list(json.loads(RUNS.read_text())) if RUNS.exists() else []


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", nargs="+", choices=list(TASKS), default=list(TASKS), metavar="NAME")
    parser.add_argument("--minutes", type=float, default=10.0, help="of teaching, for each task")
    parser.add_argument("--examined", type=int, default=128, help="held-out questions before, and again after")
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    for name in asked.tasks:
        made = run(name, asked.seed, asked.minutes, asked.examined)
        runs = [*(each for each in known() if each["name"] != made["name"]), made]
        RUNS.write_text(json.dumps(sorted(runs, key=lambda each: each["name"]), indent=1) + "\n")
    report("reasoning", list(rows(known())))


if __name__ == "__main__":
    main()
