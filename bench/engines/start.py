"""The seconds from `onward run` on the shipped model until users are served (`/readyz` answers 200).

    python -m bench start [ROUNDS]

Each round makes a new directory and starts three times on it: first, again after a stop, and again at once after
`kill -9`. How many processors others kept busy meanwhile is measured with each start, and of all rounds the three
starts of a kind beside which others did least count, by their median."""

import json
import os
import statistics
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from bench.table import Row, report

ROUNDS = 3
COUNTED = 3
GOAL_S = 8.0
TIMEOUT_S = 900.0  # on a busy machine
LOOK_S = 0.02
AT_REST_S = 5.0  # after a start, for the learner to be there
ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Start:
    ready_s: float
    own_cpu_s: float
    """The processor time of the service's own process until then."""
    others: float
    """Processors that others than the service and its processes kept busy, on average."""


@contextmanager
def started(directory: Path, began_s: float, settings: Sequence[str] = ()) -> Iterator[tuple[psutil.Process, Start]]:
    """Run a service until the end of the block, measured since `began_s`; `settings` as `--set` takes them."""
    address = directory / "service.json"
    address.unlink(missing_ok=True)
    busy_s, counted_s = busy_of_all(), time.monotonic()
    command = [sys.executable, "-m", "onward", "run", str(directory), "--port", "0"]
    command += [part for setting in settings for part in ("--set", setting)]
    with (directory.parent / "log").open("w") as log:
        process = psutil.Popen(command, cwd=ROOT, stdout=log, stderr=log, env={**os.environ, "OMP_NUM_THREADS": "1"})
    try:
        while not is_ready(address):
            if process.poll() is not None or time.monotonic() - began_s > TIMEOUT_S:
                sys.exit(f"no start: {Path(log.name).read_text()[-2000:]}")
            time.sleep(LOOK_S)
        now_s = time.monotonic()
        tree = [process, *process.children(recursive=True)]
        others_s = busy_of_all() - busy_s - sum(cpu_of(each) for each in tree)
        yield process, Start(now_s - began_s, cpu_of(process), others_s / (now_s - counted_s))
    finally:
        with suppress(psutil.NoSuchProcess):  # where it was killed
            process.terminate()
        process.wait()


def is_ready(address: Path) -> bool:
    try:
        url = json.loads(address.read_text())["urls"][0]
        with urllib.request.urlopen(f"{url}/readyz", timeout=5) as answer:
            return bool(answer.status == 200)
    except (FileNotFoundError, urllib.error.URLError, TimeoutError):
        return False


def cpu_of(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def busy_of_all() -> float:
    times = psutil.cpu_times()
    return float(times.user + times.system + times.nice + times.irq + times.softirq)


def one_round(directory: Path) -> Iterator[tuple[str, Start]]:
    directory.mkdir()
    with started(directory, time.monotonic()) as (_, first):
        yield "first start", first
        time.sleep(AT_REST_S)
    with started(directory, time.monotonic()) as (process, second):
        yield "later start", second
        time.sleep(AT_REST_S)
        process.kill()
        killed_s = time.monotonic()
        process.wait()
    with started(directory, killed_s) as (_, again):
        yield "from kill -9 to ready", again


def rows_of(kind: str, starts: list[Start]) -> Iterator[Row]:
    quietest = sorted(starts, key=lambda start: start.others)[:COUNTED]
    ready_s, own_cpu_s, others = (
        statistics.median(getattr(start, name) for start in quietest) for name in ("ready_s", "own_cpu_s", "others")
    )
    yield Row.at_most(kind, ready_s, "s", f"{GOAL_S:g} s", ready_s / GOAL_S, 1.0)
    yield Row(f"{kind}: processor time of the service's process", own_cpu_s, "s")
    yield Row(f"{kind}: processors of {os.cpu_count()} that others kept busy", others, "processors")


def main() -> None:
    starts: dict[str, list[Start]] = defaultdict(list)
    for number in range(int(sys.argv[1]) if len(sys.argv) > 1 else ROUNDS):
        with tempfile.TemporaryDirectory() as parent:
            for kind, start in one_round(Path(parent) / "service"):
                print(number, kind, start, f"load {os.getloadavg()[0]:.1f}")
                starts[kind].append(start)
    report("start", [row for kind, several in starts.items() for row in rows_of(kind, several)])


if __name__ == "__main__":
    main()
