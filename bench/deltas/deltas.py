"""The cost of a version as a delta, in bytes, time and memory, at the learning rates that matter.

    python -m bench deltas

Bytes are compared with `bench.deltas.delta_peers`, on real steps of the optimizer (`bench.deltas.delta_training`).
WARM of them come first, since a fresh optimizer moves every weight by a whole learning rate; its very first step is
shown apart. Speed is GB of weights for each second of one core's time, from files to files, hashing included: a busy
machine changes it little. Whatever is encoded here is also decoded, and compared bit for bit."""

import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from itertools import islice
from pathlib import Path
from statistics import mean
from tempfile import TemporaryDirectory

import msgspec
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.text import Text
from transformers.utils import logging

from bench.deltas.delta_lines import ANCHOR_EVERY, Line
from bench.deltas.delta_peers import LEVEL
from bench.deltas.delta_training import SOURCES
from bench.table import Row, interleave, report
from serving.weights.deltas.delta import DeltaStep, apply, encode

RATES = (1e-6, 1e-5, 1e-4, 5e-4)
WARM = 12
LARGE = "107M"
LINES = {"tiny": (("bf16", "fp32"), ANCHOR_EVERY - 1), LARGE: (("bf16",), 3)}  # dtypes; versions after the first
ROUNDS = 5
GOAL_GB_S = 0.5  # of a core
ZSTD, GAPS = f"zstd-{LEVEL}", f"gaps and values, zstd-{LEVEL}"


class _Rate(ProgressColumn):
    def render(self, task: Task) -> Text:
        return Text(f"{task.speed or 0:.2f}/s")


def measure(model: str, rate: float, directory: Path, advance: Callable[[], None]) -> list[Row]:
    """Train at one learning rate, publish, and count bytes."""
    dtypes, count = LINES[model]
    cold = {dtype: Line(directory / f"cold-{dtype}", dtype) for dtype in dtypes}
    lines = {dtype: Line(directory / dtype, dtype) for dtype in dtypes}
    for number, weights in enumerate(islice(SOURCES[model](rate), WARM + count + 1)):
        for dtype in dtypes:
            if number <= 1:
                cold[dtype].add(weights)
            if number >= WARM:
                lines[dtype].add(weights)
        advance()
    rows = [row for dtype in dtypes for row in sizes(model, dtype, rate, lines[dtype], cold[dtype])]
    if model == LARGE:
        rows += speeds(f"{model} bf16, {rate:g}", lines["bf16"].files, directory, advance)
    for line in (*cold.values(), *lines.values()):
        line.close()
    return rows


def sizes(model: str, dtype: str, rate: float, line: Line, cold: Line) -> list[Row]:
    """Compare the bytes of versions: for the tiny model the payload, since the manifest outweighs it, else all."""
    name, costs, first = f"{model} {dtype}, {rate:g}", line.costs, cold.costs[0]
    full, gaps = costs[0].full, mean(cost.gaps for cost in costs)
    payload, published = mean(cost.payload for cost in costs), mean(cost.published for cost in costs)
    ours, what = (published, "everything") if model == LARGE else (payload, "payload")
    mixed = (line.anchor + (ANCHOR_EVERY - 1) * published) / ANCHOR_EVERY
    delta = f"{name}: delta, {what}"
    return [
        Row(f"{name}: changed", 100 * mean(cost.changed for cost in costs), "%"),
        kilobytes(f"{name}: {ZSTD}", mean(cost.zstd for cost in costs), full),
        kilobytes(f"{name}: {GAPS}", gaps, full),
        kilobytes(delta, ours, full),
        Row(delta, ours / 1000, "kB", GAPS, gaps / ours),
        Row.at_most(
            f"{name}: largest version",
            max(cost.weight for cost in costs) / 1000,
            "kB",
            "full",
            max(cost.weight / cost.full for cost in costs),
            1.0,
        ),
        kilobytes(f"{name}: mean version, every {ANCHOR_EVERY}th full", mixed, full),
        Row(f"{name}: first step ever, changed", 100 * first.changed, "%"),
        kilobytes(f"{name}: first step ever, payload", first.payload, full),
        Row(f"{name}: first step ever, payload", first.payload / 1000, "kB", GAPS, first.gaps / first.payload),
    ]


def kilobytes(metric: str, size: float, full: int) -> Row:
    return Row(metric, size / 1000, "kB", "full", size / full)


def speeds(name: str, pair: list[Path], scratch: Path, advance: Callable[[], None]) -> list[Row]:
    """Measure GB of weights per second of one core, from files in the page cache to files, and peak memory."""
    parent, child = pair
    delta = scratch / "delta.bin"
    tensors = encode([parent], [child], delta).tensors
    delta.with_suffix(".json").write_bytes(msgspec.json.encode(tensors))
    size = child.stat().st_size

    def timed(job: Callable[[Path], object]) -> float:
        with TemporaryDirectory(dir=scratch) as directory:
            started = time.process_time()
            job(Path(directory))
            duration_s = time.process_time() - started
        advance()
        return size / 1e9 / duration_s

    jobs: dict[str, Callable[[Path], object]] = {
        "encode": lambda directory: encode([parent], [child], directory / "delta"),
        "apply": lambda directory: apply([parent], [DeltaStep(delta, tensors, "delta")], directory),
    }
    found = interleave({job: partial(timed, jobs[job]) for job in jobs}, ROUNDS)
    rows = []
    for job, other in (("encode", child), ("apply", delta)):
        speed = found[job]
        rows.append(Row.at_least(f"{name}: {job}", speed, "GB/s of a core", "the goal", speed / GOAL_GB_S, 1.0))
        rows += peaks(f"{name}: {job}", job, parent, other, scratch)
    delta.unlink()
    return rows


def peaks(name: str, job: str, first: Path, second: Path, scratch: Path) -> list[Row]:
    """Measure the peak memory of a process of its own."""
    with TemporaryDirectory(dir=scratch) as directory:
        places = map(str, (first, second, Path(directory) / "made"))
        command = [sys.executable, "-m", "bench.deltas.delta_peak", job, *places]
        output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    peak, before = map(int, output.split())
    size = first.stat().st_size
    return [
        Row(f"{name}, memory above the idle process", (peak - before) / 1e6, "MB", "full", (peak - before) / size),
        Row(f"{name}, peak memory of the process", peak / 1e6, "MB", "full", peak / size),
    ]


def main() -> None:
    logging.disable_progress_bar()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), _Rate(), TimeRemainingColumn())
    rows: list[Row] = []
    with Progress(*columns) as progress, TemporaryDirectory() as directory:
        for model, (_, count) in LINES.items():
            for rate in RATES:
                total = WARM + count + 1 + (2 * ROUNDS if model == LARGE else 0)
                task = progress.add_task(f"{model}, learning rate {rate:g}", total=total)
                rows += measure(model, rate, Path(directory), partial(progress.advance, task))
    report("deltas", rows)


if __name__ == "__main__":
    main()
