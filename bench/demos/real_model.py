"""A pretrained model in the whole service, learning from users: what is learned, how soon, and what it costs.

    python -m bench real_model [--seeds 0 1 2 3 4] [--seconds 600]

Each seed is one `make demo MODEL=smollm2`: users want small functions at temperature 1 and take those that pass their
tests; before and after, held-out functions are asked for. Latencies and the learner's time are the service's own
figures; memory is what the kernel says of its processes, once a second. Two floors are measured with each seed:
importing torch and reading the weights, for the start, and writing an adapter's bytes durably, for publishing. Runs are
merged by seed into `bench/results/real_model_runs.json`. What was learned is of all of them, what it takes of those of
this call; rows are medians, unless they say otherwise."""

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.demos.watch import SERVED, Watch, samples_of, size_of
from bench.engines.start import started
from bench.table import RESULTS, Row, commit, report
from core.provenance import made_by
from onward.commands.demo import PRETRAINED_NAME, as_options, pretrained_settings
from onward.directory.layout import PRETRAINED_MODEL
from simulator.functions.subject import Functions
from simulator.lessons.lesson import LessonOptions
from simulator.lessons.run import run_lesson
from simulator.tasks.sandbox import ForkServer

RUNS = RESULTS / "real_model_runs.json"
KEPT = (
    *("seed", "seconds_taught", "held_out", "right_start", "right_end", "gain", "taught", "taught_start", "taught_end"),
    *("turns", "tokens", "turn_p50_s", "turn_p99_s", "versions", "failed_requests", "lost_turns", "lost_outcomes"),
)
READ = "import torch, sys, pathlib; [file.read_bytes() for file in pathlib.Path(sys.argv[1]).glob('*.safetensors')]"
Run = dict[str, Any]


def start_floor_s() -> float:
    began_s = time.monotonic()
    subprocess.run([sys.executable, "-c", READ, str(PRETRAINED_MODEL)], check=True)
    return time.monotonic() - began_s


def writing_floor_s(directory: Path, size: int) -> float:
    content, began_s = os.urandom(size), time.monotonic()
    with (directory / "floor").open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    return time.monotonic() - began_s


async def teach(plan: LessonOptions, output: Path) -> Run:
    sandbox = ForkServer()
    try:
        return await run_lesson(plan, Functions(sandbox), None, output, made_by("python -m bench real_model"))
    finally:
        await sandbox.close()


def run(seed: int, seconds: float, directory: Path) -> Run:
    floor_s, service = start_floor_s(), directory / "service"
    settings = as_options(pretrained_settings(seed))
    service.mkdir()
    with started(service, time.monotonic(), settings) as (process, start):
        url = json.loads((service / "service.json").read_text())["urls"][0]
        watch = Watch(service, process)
        looking = threading.Thread(target=watch.look)
        looking.start()
        told = asyncio.run(teach(LessonOptions((url,), seconds, seed, model=PRETRAINED_NAME), directory))
        samples = samples_of(url)
        watch.over.set()
        looking.join()
    version_bytes = watch.version_bytes
    return {"commit": commit(), **{figure: told[figure] for figure in KEPT}} | {
        "start_s": start.ready_s,
        "start_floor_s": floor_s,
        "served_p50_s": samples.get(SERVED.format("0.5")),
        "served_p99_s": samples.get(SERVED.format("0.99")),
        **learner_times(samples),
        "writing_floor_s": writing_floor_s(directory, int(version_bytes)),
        "version_bytes": version_bytes,
        "service_bytes": watch.service_bytes,
        "learner_bytes": watch.learner_bytes,
        "kept_bytes": sum(map(size_of, (path for path in service.rglob("*") if path.is_file()))),
    }


def learner_times(samples: Mapping[str, float]) -> dict[str, float]:
    """Return how many updates there were, and what the learner's time went into."""
    doing = {name: seconds for name, seconds in samples.items() if name.startswith("onward_learner_seconds_total{")}
    updates = samples["onward_learner_updates_total"]

    def spent(what: str) -> float:
        return sum(seconds for name, seconds in doing.items() if what in name)

    return {
        "updates": updates,
        "update_s": spent("updating") / updates,
        "publishing_s": spent("publishing") / updates,
        "publishing_share": spent("publishing") / sum(doing.values()),
    }


def rows(runs: Sequence[Run], made_now: Sequence[Run]) -> Iterator[Row]:
    yield from rows_of_learning(runs)
    yield from rows_of_pace(made_now)


def rows_of_learning(runs: Sequence[Run]) -> Iterator[Row]:
    made = commits(runs)
    seconds = runs[0]["seconds_taught"]
    of_all = f"{len(runs)} seeds, {runs[0]['held_out']} held-out functions each"
    start, end = (statistics.median(each[name] for each in runs) for name in ("right_start", "right_end"))
    yield Row("tests passed at the start, temperature 1", start, "share", of_all, commit=made)
    yield Row(f"tests passed after {seconds:.0f} s", end, "share", of_all, end, 0.55, end >= 0.55, made)
    low = min(each["gain"][0] for each in runs)
    yield Row("lower end of the gain's 95 % interval, the least", low, "share", of_all, low, 0.0, low > 0, made)
    lost = sum(each["failed_requests"] + each["lost_turns"] + each["lost_outcomes"] for each in runs)
    yield Row("failed or lost, of all seeds", lost, "records", None, lost, 0, lost == 0, made)


def rows_of_pace(runs: Sequence[Run]) -> Iterator[Row]:
    made = commits(runs)

    def over(name: str, of: Callable[[list[float]], float] = statistics.median) -> float:
        return of([each[name] for each in runs])

    def within(metric: str, value: float, unit: str, goal: float, shown: float = 1.0) -> Row:
        return Row.at_most(metric, value / shown, unit, f"{goal / shown:g} {unit}", value / goal, 1.0, made)

    yield within("feedback to served, p50", over("served_p50_s"), "s", 25.0)
    yield within("feedback to served, p99", over("served_p99_s"), "s", 90.0)
    yield Row("an update", over("update_s"), "s", commit=made)
    yield within("publishing, of the learner's time", over("publishing_share"), "share", 0.05)
    yield within("publishing a version", over("publishing_s"), "s", 1.5)
    floor_s = over("writing_floor_s")
    yield Row("floor: writing its bytes", floor_s, "s", "publishing", over("publishing_s") / floor_s, commit=made)
    yield within("disk of a version", over("version_bytes"), "MB", 30e6, 1e6)
    yield within("disk after all", over("kept_bytes", max), "MB", 2e9, 1e6)
    yield within("memory of the service, the most", over("service_bytes", max), "MB", 1.3e9, 1e6)
    yield within("memory of the learner, the most", over("learner_bytes", max), "MB", 1.2e9, 1e6)
    yield within("start to ready", over("start_s"), "s", 20.0)
    floor_s = over("start_floor_s")
    yield Row("floor: torch and the weights", floor_s, "s", "start", over("start_s") / floor_s, commit=made)
    yield Row("turns", over("turns"), "turns", commit=made)
    yield Row("updates", over("updates"), "updates", commit=made)


def commits(runs: Sequence[Run]) -> str:
    return ", ".join(sorted({each["commit"] for each in runs}))


def known() -> list[Run]:
    """Return the runs that are written down already."""
    return list(json.loads(RUNS.read_text())) if RUNS.exists() else []


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=list(range(5)))
    parser.add_argument("--seconds", type=float, default=600.0, help="of teaching")
    asked = parser.parse_args()
    now: list[Run] = []
    for seed in asked.seeds:
        with tempfile.TemporaryDirectory(prefix="onward-real-model-") as parent:
            now.append(run(seed, asked.seconds, Path(parent)))
        runs = [*(each for each in known() if each["seed"] != seed), now[-1]]
        RUNS.write_text(json.dumps(sorted(runs, key=lambda each: each["seed"]), indent=1) + "\n")
    report("real_model", list(rows(known(), now)))


if __name__ == "__main__":
    main()
