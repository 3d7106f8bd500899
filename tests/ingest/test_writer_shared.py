"""Several writers over one Kafka and one Postgres store each event once, while members join, leave, sleep or die."""

import itertools
import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import IO

import pytest
from kafka import KafkaProducer
from kafka_world import PARTITIONS, open_log, read, topics_of_our_own
from services import require_services
from sqlalchemy import func, select
from stepping import step
from stores import Database, database
from waiting import wait_for

from core import telemetry
from core.clock import SystemClock
from core.events import Completion, DeadLetter, Outcome, Topic
from core.ids import SessionId
from core.ports import TopicPartition
from core.settings import IngestSettings, KafkaSettings
from core.store import SqlStore
from core.store.database import tables
from ingest.kafka.clients import topic_name
from ingest.kafka.log import KafkaEventLog
from ingest.writer import GROUP, Writer

SETTINGS = IngestSettings(batch_records=16)
EVERY = {TopicPartition(Topic.TURNS, number) for number in range(PARTITIONS)}
Make = Callable[..., Completion]


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Database]:
    with database("postgres", tmp_path) as home:
        yield home


@pytest.fixture
def store(home: Database) -> Iterator[SqlStore]:
    store = home.open()
    yield store
    store.close()


@pytest.fixture
def kafka() -> Iterator[KafkaSettings]:
    with topics_of_our_own(require_services().kafka, client={"session_timeout_s": 3.0}) as settings:
        yield settings


@pytest.fixture
def log(kafka: KafkaSettings) -> Iterator[KafkaEventLog]:
    log = open_log(kafka)
    yield log
    log.close()


def count(store: SqlStore) -> int:
    with store.read() as connection:
        return sum(
            connection.execute(select(func.count()).select_from(table)).scalar_one()
            for table in (tables.turns, tables.outcomes)
        )


def duplicates() -> float:
    return telemetry.DUPLICATES.labels(topic=Topic.TURNS)._value.get()


def say(log: KafkaEventLog, turns: list[Completion], outcome: Callable[[Completion], Outcome]) -> None:
    log.append_blocking(Topic.TURNS, turns)
    log.append_blocking(Topic.TURNS, [outcome(turn) for turn in turns])


class Worker:
    """A writer in a thread."""

    def __init__(self, log: KafkaEventLog, store: SqlStore) -> None:
        self.writer = Writer(log, store, SETTINGS, SystemClock())
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    @property
    def owned(self) -> set[TopicPartition]:
        return set(self.writer._turns.member.offsets)

    def _run(self) -> None:
        while not self._stopping.is_set():
            step(self.writer, 0.1)
        self.writer.close()

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join()


def test_writers_that_come_and_go_store_every_event_once(
    log: KafkaEventLog, store: SqlStore, completion: Make, outcome: Callable[[Completion], Outcome]
) -> None:
    before = duplicates()
    workers = [Worker(log, store)]
    try:
        for said, change in enumerate(("one", "two", "three", "the first goes"), 1):
            if change in ("two", "three"):
                workers.append(Worker(log, store))
            elif change == "the first goes":
                workers.pop(0).stop()
            say(log, [completion(SessionId(f"{change} {number}")) for number in range(200)], outcome)
            wait_for(lambda: share(workers))
            wait_for(lambda: count(store) == 400 * said)  # noqa: B023
    finally:
        for worker in workers:
            worker.stop()
    with store.look() as view:
        assert view.offsets.of_group(GROUP) == {source: log.end(source) for source in EVERY}
    assert duplicates() == before, "nothing was written twice, by whichever writer"


def share(workers: list[Worker]) -> bool:
    """Return whether each partition has one owner and each worker owns some."""
    owned = [worker.owned for worker in workers]
    return all(owned) and sorted(itertools.chain(*owned)) == sorted(EVERY)


WRITE = """
import sys
from core.clock import SystemClock
from core.settings import IngestSettings, KafkaSettings, PostgresSettings
from core.stages.rounds import Rounds
from core.store import open_postgres
from ingest.kafka.log import KafkaEventLog
from ingest.writer import Writer
log = KafkaEventLog(KafkaSettings.model_validate_json(sys.argv[1]))
store = open_postgres(PostgresSettings(url=sys.argv[2]))
writer = Writer(log, store, IngestSettings(batch_records=16), SystemClock())
rounds = Rounds("writer", writer)
while True:
    done = rounds.step(0.05)
    print(done, len(writer._turns.member.offsets), flush=True)
"""


class Process:
    def __init__(self, kafka: KafkaSettings, home: Database, errors: IO[bytes]) -> None:
        assert home.postgres is not None
        arguments = [json.dumps(kafka.model_dump(mode="json")), home.postgres.url]
        command = [sys.executable, "-c", WRITE, *arguments]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True)
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read)  # a pipe that nobody reads would stop it
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in iter(self._process.stdout.readline, ""):
            self._lines.put(line)
        self._lines.put("")

    def send(self, number: int) -> None:
        os.kill(self._process.pid, number)

    def step(self) -> tuple[int, int]:
        """Wait for the next round; return (records handled, partitions owned)."""
        line = self._lines.get(timeout=120)
        assert line, "it ended by itself"
        done, owned = line.split()
        return int(done), int(owned)

    def end(self) -> None:
        self._process.kill()
        self._reader.join()
        self._process.communicate()


@contextmanager
def ending(process: Process) -> Iterator[Process]:
    try:
        yield process
    finally:
        process.end()


def test_a_writer_that_slept_wakes_up_as_a_zombie_writes_nothing_and_works_on(
    kafka: KafkaSettings,
    log: KafkaEventLog,
    home: Database,
    store: SqlStore,
    completion: Make,
    outcome: Callable[[Completion], Outcome],
    tmp_path: Path,
) -> None:
    workers: list[Worker] = []
    with (tmp_path / "errors").open("wb") as errors, ending(Process(kafka, home, errors)) as sleeper:
        wait_for(lambda: sleeper.step()[1] == PARTITIONS)
        say(log, [completion() for _ in range(100)], outcome)
        wait_for(lambda: sleeper.step()[0] > 0)
        sleeper.send(signal.SIGSTOP)  # amid its work
        before = duplicates()
        workers.append(Worker(log, store))
        try:
            wait_for(lambda: share(workers))
            say(log, [completion() for _ in range(100)], outcome)
            wait_for(lambda: count(store) == 400)
            sleeper.send(signal.SIGCONT)
            wait_for(lambda: 0 < sleeper.step()[1] < PARTITIONS)
            say(log, [completion() for _ in range(100)], outcome)
            wait_for(lambda: count(store) == 600)
            assert duplicates() == before, "the heir began where the sleeper's last transaction ended"
            sleeper.send(signal.SIGKILL)
            say(log, [completion() for _ in range(100)], outcome)
            wait_for(lambda: count(store) == 800)
        finally:
            workers[0].stop()


def test_a_record_that_is_too_large_to_be_announced_is_set_aside(store: SqlStore) -> None:
    """Kafka's own limit is above the log's, so other producers may exceed the latter."""
    with (
        topics_of_our_own(require_services().kafka, topics={"max_record_bytes": 1 << 16}) as settings,
        closing(open_log(settings)) as log,
    ):
        garbage = os.urandom(settings.topics.max_record_bytes + 1000)
        with closing(KafkaProducer(bootstrap_servers=list(settings.bootstrap_servers))) as producer:
            producer.send(topic_name(settings, Topic.TURNS), garbage, partition=0).get(timeout=60)
        with closing(Writer(log, store, SETTINGS, SystemClock())) as writer:
            wait_for(lambda: step(writer, 0.1) and letters(store))
        assert [letter.raw for letter in letters(store)] == [garbage]
        with closing(log.reader([Topic.DEAD_LETTERS])) as reader:
            (announced,) = read(reader, 1)
    assert isinstance(announced.event, DeadLetter)
    assert announced.event.raw == b""
    assert f"({len(garbage)} bytes, too large" in announced.event.reason


def letters(store: SqlStore) -> list[DeadLetter]:
    with store.look() as view:
        return view.dead_letters.newest(10)
