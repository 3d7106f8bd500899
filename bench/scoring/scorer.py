"""The cost of scoring: events per second from Kafka to rewards in Postgres and in Kafka, and the time to a reward.

    make services && python -m bench scorer

The rate is compared with a consumer that only decodes the same events; two scorers show how they share the work.
Each event is a turn (about 2.5 KB) or an outcome (0.4 KB) of a turn some time before, which decides its reward. All
contenders work off a backlog of the same size in two partitions and take turns; scorers are processes of their own
and keep what they have scored, so stores grow alike. CPU is the scorers' and that of their connections' processes in
Postgres. The time to a reward is from an outcome's acknowledged append to the moment at which the broker took the
reward, both by this machine's clock, with turns and outcomes coming at a steady rate."""

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from statistics import median, quantiles

import psutil
import uvloop
from sqlalchemy import text

from bench.api.api_overhead import process
from bench.log.kafka_ingest import decode_rate
from bench.log.traffic import one_turn, outcome_of, turns_and_outcomes
from bench.services import log_on, migrated_database, store_on, topics, wait_for
from bench.table import Row, interleave, report
from core.events import Reward, Topic
from core.ids import InferenceId, new_session_id
from core.settings import KafkaSettings
from core.store import SqlStore
from ingest.kafka.log import KafkaEventLog

ROUNDS = 5
PARTITIONS = 2
TURNS = 8000  # of a round
EVENTS = 2 * TURNS  # with their outcomes
PER_S = 50  # outcomes, and as many turns, where the time to a reward is measured
SECONDS = 20
JOIN_S = 0.5  # how long scorers run before they are asked whether they share the partitions
GOAL = 0.12
GOAL_OF_TWO = 1.6
GOAL_OF_CPU = 1.1
CORES_OF_TWO = 6  # two scorers, what they keep busy in Kafka and Postgres, and this program
FLOOR = "consumer that only decodes"


class World:
    """Topics, a database and scorers that pause."""

    def __init__(self, kafka: KafkaSettings, log: KafkaEventLog, store: SqlStore) -> None:
        self.kafka, self.log, self.store = kafka, log, store
        self.scorers: list[subprocess.Popen[str]] = []
        self.cpu_us: list[float] = []
        self.scored = 0

    def join(self, scorers: list["subprocess.Popen[str]"]) -> None:
        """Wait until each owns as many partitions as the others, and pauses."""
        self.scorers = scorers
        while {owned for owned, _ in self.pause()} != {PARTITIONS // len(scorers)}:
            self.go_on()
            time.sleep(JOIN_S)

    def go_on(self) -> None:
        for scorer in self.scorers:
            self._tell(scorer)

    def pause(self) -> list[tuple[int, float]]:
        """Pause each scorer and return its (partitions, CPU seconds)."""
        for scorer in self.scorers:
            self._tell(scorer)
        return [self._hear(scorer) for scorer in self.scorers]

    def _tell(self, scorer: "subprocess.Popen[str]") -> None:
        assert scorer.stdin is not None
        scorer.stdin.write("\n")
        scorer.stdin.flush()

    def _hear(self, scorer: "subprocess.Popen[str]") -> tuple[int, float]:
        assert scorer.stdout is not None
        owned, cpu_s = scorer.stdout.readline().split()
        return int(owned), float(cpu_s)

    def score_rate(self) -> float:
        """Return events per second, until the last reward is in Kafka."""
        self.log.append_blocking(Topic.TURNS, turns_and_outcomes(TURNS))
        self.scored += TURNS
        start_s, backends_s = time.perf_counter(), self._backends_s()
        self.go_on()
        wait_for(self._is_done)
        took_s = time.perf_counter() - start_s
        backends_s = self._backends_s() - backends_s
        self.cpu_us.append((sum(cpu_s for _, cpu_s in self.pause()) + backends_s) / EVENTS * 1e6)
        return EVENTS / took_s

    def _is_done(self) -> bool:
        with self.store.read() as connection:
            if connection.execute(text("SELECT max(sequence) FROM rewards")).scalar() != self.scored:
                return False
            return not connection.execute(text("SELECT 1 FROM rewards WHERE published IS false LIMIT 1")).all()

    def _backends_s(self) -> float:
        query = text("SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND pid != pg_backend_pid()")
        with self.store.read() as connection:
            backends = [psutil.Process(pid).cpu_times() for (pid,) in connection.execute(query)]
        return sum(times.user + times.system for times in backends)

    def reward_times_ms(self) -> list[float]:
        acknowledged_s: dict[InferenceId, float] = {}

        async def converse() -> None:
            said = one_turn(new_session_id())
            await self.log.append(Topic.TURNS, said)
            outcome = outcome_of(said)
            await self.log.append(Topic.TURNS, outcome)
            acknowledged_s[said.inference_id] = time.time()

        async def run() -> None:
            start_s = time.monotonic()
            async with asyncio.TaskGroup() as group:
                for number in range(PER_S * SECONDS):
                    await asyncio.sleep(max(0.0, start_s + number / PER_S - time.monotonic()))
                    group.create_task(converse())

        reader = self.log.reader([Topic.REWARDS])
        for source in reader.assignment():
            reader.seek(source, self.log.end(source))
        self.go_on()
        uvloop.run(run())
        emitted_s: dict[InferenceId, float] = {}
        while len(emitted_s) < len(acknowledged_s):
            for record in reader.poll(1000, 1.0):
                assert isinstance(record.event, Reward)
                emitted_s[record.event.inference_id] = record.appended_at.timestamp()
        self.pause()
        reader.close()
        return [1000 * (emitted_s[which] - at_s) for which, at_s in acknowledged_s.items()]


@contextmanager
def world(scorers: int) -> Iterator[World]:
    with ExitStack() as stack:
        kafka, postgres = stack.enter_context(topics(PARTITIONS)), stack.enter_context(migrated_database())
        made = World(kafka, stack.enter_context(log_on(kafka)), stack.enter_context(store_on(postgres)))
        command = [
            sys.executable,
            "-m",
            "bench.scoring.scorer_worker",
            kafka.model_dump_json(),
            postgres.model_dump_json(),
        ]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        made.join([stack.enter_context(process(command, **pipes)) for _ in range(scorers)])
        yield made


@contextmanager
def backlog() -> Iterator[KafkaSettings]:
    with topics(PARTITIONS) as settings, log_on(settings) as log:
        log.append_blocking(Topic.TURNS, turns_and_outcomes(TURNS))
        yield settings


def rows_of(read: KafkaSettings, alone: World, shared: World) -> Iterator[Row]:
    decode = partial(decode_rate, read, PARTITIONS, EVENTS)
    rates = interleave({"decode": decode, "one": alone.score_rate, "two": shared.score_rate}, ROUNDS)
    one, two, floor = rates["one"], rates["two"], rates["decode"]
    yield Row(FLOOR, floor, "events/s")
    yield Row.at_least("one scorer", one, "events/s", FLOOR, one / floor, GOAL)
    yield from pair(two / one, two, median(alone.cpu_us), median(shared.cpu_us))


def pair(ratio: float, two: float, cpu_of_one: float, cpu_of_two: float) -> Iterator[Row]:
    """Judge two scorers by their rate where there are cores for two.

    Elsewhere they are judged by the CPU of an event, which says what two could do."""
    ours, theirs = ("two scorers", "one scorer")
    has_cores = (os.cpu_count() or 1) >= CORES_OF_TWO
    rate, cost = GOAL_OF_TWO if has_cores else None, None if has_cores else GOAL_OF_CPU
    yield Row(f"{theirs}: CPU", cpu_of_one, "µs/event")
    yield Row(ours, two, "events/s", theirs, ratio, rate, rate is None or ratio >= rate)
    grown = cpu_of_two / cpu_of_one
    yield Row(f"{ours}: CPU", cpu_of_two, "µs/event", theirs, grown, cost, cost is None or grown <= cost)


def main() -> None:
    with backlog() as read, world(1) as alone, world(2) as shared:
        rows = list(rows_of(read, alone, shared))
        times_ms = alone.reward_times_ms()
    where = f"outcome acknowledged to reward in Kafka, {PER_S} outcomes/s"
    rows.append(Row(f"{where}, p50", median(times_ms), "ms"))
    rows.append(Row(f"{where}, p99", quantiles(times_ms, n=100, method="inclusive")[98], "ms"))
    report("scorer", rows)


if __name__ == "__main__":
    main()
