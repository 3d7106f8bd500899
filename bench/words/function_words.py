"""What the words of a failing test add to how a pretrained model learns small functions: turns until it passes.

    python -m bench function_words [--seeds 0 1 2 3 4] [--turns 320] [--rate 1e-3] [--seconds 3600]

Each seed is the service of `make demo MODEL=smollm2` twice: users who take what passes their tests and turn down the
rest, and the same users, who also say which test did not pass. Users ask 16 functions a version and wait for the next,
so that as many turns make as many updates in both, however long an update takes. Counted are the turns until 55 % of
the last 64 answers passed; where that never came, all turns, of which the row says so. The rate is the highest of
decision 31, at which some 20 updates come near that level. All these users are honest, so their words need no proof: to
prove each takes eight other turns that are read with it, and an update five times as long. Runs are merged by seed into
`bench/results/function_words_runs.json`."""

import argparse
import asyncio
import json
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from bench.engines.start import started
from bench.table import RESULTS, Row, commit, report
from onward.commands.demo import PRETRAINED_NAME, WORDS, as_options, pretrained_settings
from simulator.functions.subject import Functions
from simulator.lessons.lesson import Pace, Plan
from simulator.lessons.run import run_lesson
from simulator.tasks.sandbox import Sandbox

RUNS = RESULTS / "function_words_runs.json"
BELIEVED = {"ONWARD_LEARNER__WORDS__PROOF": "0"}
WINDOW, LEVEL = 64, 0.55
BATCH = 16  # turns of an update, no fewer
KEPT = ("right_start", "right_end", "taught", "taught_start", "taught_end", "failed_requests", "lost_outcomes")
Run = dict[str, Any]


async def taught(plan: Plan, output: Path, *, says_why: bool) -> Run:
    sandbox = Sandbox()
    try:
        return await run_lesson(plan, Functions(sandbox, says_why=says_why), None, output)
    finally:
        await sandbox.close()


def run(seed: int, asked: argparse.Namespace, directory: Path, *, words: bool) -> Run:
    service = directory / "service"
    service.mkdir(parents=True)
    settings = {**pretrained_settings(seed), **(WORDS | BELIEVED if words else {})}
    settings |= {f"ONWARD_LEARNER__BATCH__{name}": str(BATCH) for name in ("TURNS", "MIN_TURNS")}
    settings["ONWARD_LEARNER__OPTIMIZER__LEARNING_RATE"] = str(asked.rate)
    pace = Pace(asked.turns, BATCH, ahead=2 * BATCH)
    with started(service, time.monotonic(), as_options(settings)):
        url = json.loads((service / "service.json").read_text())["urls"][0]
        plan = Plan((url,), asked.seconds, seed, asked.examined, model=PRETRAINED_NAME, pace=pace)
        told = asyncio.run(taught(plan, directory / "report", says_why=words))
    passed = [right for _, _, right in told["curve"]]
    return {
        "seed": seed,
        "words": words,
        "rate": asked.rate,
        "commit": commit(),
        **{figure: told[figure] for figure in KEPT},
        "turns_until": turns_until(passed),
        "updates": len(told["updates"]),
        "seconds": told["seconds"],
        "passed": passed,
    }


def turns_until(passed: Sequence[int]) -> int | None:
    """Return after how many answers a share of LEVEL of the last WINDOW passed; None where that never was."""
    ends = range(WINDOW, len(passed) + 1)
    return next((end for end in ends if sum(passed[end - WINDOW : end]) >= LEVEL * WINDOW), None)


def rows(runs: Sequence[Run]) -> Iterator[Row]:
    made = ", ".join(sorted({each["commit"] for each in runs}))
    pairs = [
        tuple(next((r for r in runs if (r["seed"], r["words"]) == (seed, words)), None) for words in (False, True))
        for seed in sorted({each["seed"] for each in runs})
    ]
    for number, told in pairs:
        if number is not None and told is not None:
            for row in compared(number, told):
                yield replace(row, metric=f"seed {told['seed']}: {row.metric}", commit=made)


def compared(number: Run, told: Run) -> Iterator[Row]:
    """Yield what words add to the number: fewer turns, which need to have come to the level at all."""
    alone, with_words = (each["turns_until"] or each["taught"] for each in (number, told))
    without = f"{alone} without" if number["turns_until"] else f"never in {alone} without"
    is_sooner = told["turns_until"] is not None and with_words < alone
    came = "" if told["turns_until"] else " (cut off before)" if told["taught"] < alone else " (never)"
    metric = f"turns until {LEVEL:.0%} pass, with words{came}"
    yield Row(metric, with_words, "turns", without, with_words / alone, 1.0, is_sooner)
    for name, figure in (("of the last 64", "taught_end"), ("held-out, at the end", "right_end")):
        if told[figure] is not None and number[figure] is not None:  # not examined where it was cut off
            yield Row(f"right {name}, with words", told[figure], "share", f"{number[figure]:.2f} without")
    both = min(len(each["passed"]) for each in (number, told))
    first = [sum(each["passed"][:both]) / both for each in (number, told)]
    yield Row(f"right of the first {both} taught, with words", first[1], "share", f"{first[0]:.2f} without")
    took = [each["seconds"] / each["updates"] for each in (number, told)]
    yield Row("an update and its turns, with words", took[1], "s", f"{took[0]:.1f} s without")


def known() -> list[Run]:
    """Return the runs that are written down already."""
    return list(json.loads(RUNS.read_text())) if RUNS.exists() else []


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=list(range(5)))
    parser.add_argument("--words", type=int, nargs="+", choices=(0, 1), default=[0, 1], help="without, with, or both")
    parser.add_argument("--turns", type=int, default=320, help="of teaching")
    parser.add_argument(
        "--seconds", type=float, default=3600.0, help="of teaching at most: what takes longer is cut off"
    )
    parser.add_argument("--rate", type=float, default=1e-3, help="of learning")
    parser.add_argument("--examined", type=int, default=96, help="held-out functions, before and after")
    asked = parser.parse_args()
    for seed in asked.seeds:
        for words in asked.words:
            with tempfile.TemporaryDirectory(prefix="onward-function-words-") as parent:
                made = run(seed, asked, Path(parent), words=bool(words))
            others = [each for each in known() if (each["seed"], each["words"]) != (seed, words)]
            runs = sorted([*others, made], key=lambda each: (each["seed"], each["words"]))
            RUNS.write_text(json.dumps(runs, indent=1) + "\n")
    report("function_words", list(rows(known())))


if __name__ == "__main__":
    main()
