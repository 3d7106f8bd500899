"""The cost of monitors: events per second from the log into their windows, and the time of a look.

    python -m bench monitors

The rate is compared with a reader that only decodes the same events; a look is measured by how many workloads have
news. Each turn comes with an outcome and a reward, of one workload, in a SQLite log. Contenders read rounds of the
same size and take turns. A look examines all monitors over both windows of every workload."""

import random
import statistics
import tempfile
import time
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import msgspec

import onward
from bench.log.traffic import outcome_of, turns
from bench.table import Row, interleave, report
from core import telemetry
from core.clock import SystemClock
from core.events import Completion, Reward, Topic
from core.ports import LogReader
from core.reward_spec import load_reward_spec
from core.settings import MonitorSettings
from core.stages.rounds import Rounds
from core.store import SqlStore, open_sqlite
from ingest.sqlite.log import SqliteEventLog
from scoring.watching import MonitorStage

ROUNDS = 5
TURNS = 4000  # of a round
LOOKS = 10
WORKLOADS = (1, 10, 100)
SEED = 0
GOAL = 0.5
LOOK_GOAL = 0.05
FILLED_TURNS = 700  # of each workload: its reference, and the window after it
FLOOR = "reader that only decodes"
NEVER_S = 1e9
SPEC = Path(onward.__file__).parent / "rewards.toml"


class World:
    def __init__(self, directory: Path) -> None:
        self.log = SqliteEventLog(directory / "log.db", partitions=1, poll_s=0.01)
        self.store: SqlStore = open_sqlite(directory / "store.db")
        self.rng = random.Random(SEED)

    def say(self, count: int, workloads: int = 1) -> None:
        """Append turns, their outcomes, and rewards."""
        said = [
            msgspec.structs.replace(each, workload=f"w{number % workloads}", received_at=datetime.now(UTC))
            for number, each in enumerate(turns(count))
        ]
        self.log.append_blocking(Topic.TURNS, [*said, *map(outcome_of, said)])
        self.log.append_blocking(Topic.REWARDS, [self.reward(each) for each in said])

    def reward(self, turn: Completion) -> Reward:
        value = self.rng.gauss(0.5, 0.2)
        now = datetime.now(UTC)
        return Reward(
            inference_id=turn.inference_id,
            session_id=turn.session_id,
            namespace=turn.namespace,
            workload=turn.workload,
            revision=0,
            value=value,
            components={"accepted": value},
            outcome_ids=(),
            first_outcome_at=now,
            last_outcome_at=now,
            why="accepted",
            spec="spec",
            final=True,
            decided_at=now,
        )

    def watcher(self, every_s: float, maturity_s: float | None = 0.001) -> MonitorStage:
        settings = MonitorSettings(every_s=every_s, maturity_s=maturity_s)
        return MonitorStage(self.log, self.store, load_reward_spec(SPEC), settings, SystemClock())

    def close(self) -> None:
        self.store.close()
        self.log.close()


@contextmanager
def made_world() -> Iterator[World]:
    made = tempfile.TemporaryDirectory(dir=Path.cwd(), prefix=".bench-monitors-")
    with made as place, closing(World(Path(place))) as world:
        yield world


def take_all(rounds: Rounds) -> int:
    taken = 0
    while found := rounds.step(0.0):
        taken += found
    return taken


def decode_all(reader: LogReader) -> int:
    read = 0
    while found := reader.poll(512, 0.0):
        read += len(found)
    return read


def rates() -> dict[str, float]:
    """Return events per second of each contender."""
    with (
        made_world() as world,
        closing(world.watcher(NEVER_S)) as watcher,
        closing(world.log.reader([Topic.TURNS, Topic.REWARDS])) as reader,
    ):
        rounds = Rounds("monitors", watcher)
        rounds.step(0.0)  # it begins at the end of an empty log
        contenders: dict[str, Callable[[], int]] = {
            "watch": lambda: take_all(rounds),
            FLOOR: lambda: decode_all(reader),
        }
        figures: dict[str, list[float]] = {name: [] for name in contenders}
        for _ in range(ROUNDS):
            world.say(TURNS)
            for name, figure in interleave({name: partial(rate, take) for name, take in contenders.items()}, 1).items():
                figures[name].append(figure)
    return {name: statistics.median(values) for name, values in figures.items()}


def rate(take: Callable[[], int]) -> float:
    began_s = time.perf_counter()
    return take() / (time.perf_counter() - began_s)


def held_mib() -> float:
    """Measure the interpreter's memory that windows and reference hold, with the shipped maturity."""
    held, maturity_s = 0, MonitorSettings().maturity_s
    with made_world() as world, closing(world.watcher(NEVER_S, maturity_s)) as watcher:
        rounds = Rounds("monitors", watcher)
        rounds.step(0.0)
        tracemalloc.start()
        for _ in range(ROUNDS):
            world.say(TURNS)
            before, _ = tracemalloc.get_traced_memory()
            take_all(rounds)
            held += tracemalloc.get_traced_memory()[0] - before
        tracemalloc.stop()
    return held / 2**20


def look_s(workloads: int) -> float:
    """Return the median time of a look, with all windows full and news in each."""
    with made_world() as world, closing(world.watcher(1e-6)) as watcher:
        rounds = Rounds("monitors", watcher)
        rounds.step(0.0)
        for _ in range(FILLED_TURNS // 100):
            world.say(100 * workloads, workloads)
            take_all(rounds)
        took: list[float] = []
        while len(took) < LOOKS:
            world.say(workloads, workloads)
            telemetry.LOOK_SECONDS.set(0)
            while not telemetry.LOOK_SECONDS._value.get():
                rounds.step(0.001)
            took.append(telemetry.LOOK_SECONDS._value.get())
    return statistics.median(took)


def main() -> None:
    taken = rates()
    rows = [
        Row(FLOOR, taken[FLOOR], "events/s"),
        Row.at_least("into windows", taken["watch"], "events/s", FLOOR, taken["watch"] / taken[FLOOR], GOAL),
        Row(f"held after {ROUNDS * TURNS:,} turns of one workload", held_mib(), "MiB"),
    ]
    for workloads in WORKLOADS:
        found_s = look_s(workloads)
        every_s = MonitorSettings().every_s
        name = f"a look at {workloads} workloads"
        rows.append(Row.at_most(name, found_s, "s", "monitors.every_s", found_s / every_s, LOOK_GOAL))
    report("monitors", rows)


if __name__ == "__main__":
    main()
