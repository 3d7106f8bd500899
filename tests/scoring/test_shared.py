"""Several scorers over one Kafka and one Postgres: the same rewards as from one, each once, published in order."""

import itertools
import threading
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from kafka_world import PARTITIONS, open_log, read, topics_of_our_own
from services import require_services
from stepping import step
from stores import database
from waiting import wait_for

from core.clock import ManualClock
from core.events import Reward, Topic
from core.ids import Namespace
from core.settings import ScoringSettings
from core.store import SqlStore
from ingest.kafka.log import KafkaEventLog
from scoring.stage import Scorer

SETTINGS = ScoringSettings(tick_s=0.01, batch_records=10)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqlStore]:
    with database("postgres", tmp_path) as home:
        store = home.open()
        yield store
        store.close()


@pytest.fixture
def log() -> Iterator[KafkaEventLog]:
    with topics_of_our_own(require_services().kafka) as settings:
        log = open_log(settings)
        yield log
        log.close()


class Worker:
    """A scorer in a thread."""

    def __init__(self, log: KafkaEventLog, store: SqlStore, spec: Any, clock: ManualClock) -> None:
        self.scorer = Scorer(log, store, spec, SETTINGS, clock)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._stopping.is_set():
            step(self.scorer, 0.1)
        self.scorer.close()

    @property
    def owns(self) -> bool:
        return bool(self.scorer._member.offsets)

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join()


def emitted(store: SqlStore) -> list[Reward]:
    with store.look() as view:
        return [reward for _, reward in view.rewards.after(Namespace("default"), 0, 100_000)]


def waiting(store: SqlStore) -> int:
    with store.look() as view:
        return len(view.rewards.unpublished(range(PARTITIONS), 100_000))


def test_scorers_that_come_and_go_make_what_one_makes(lab: ModuleType, log: KafkaEventLog, store: SqlStore) -> None:
    events = lab.random_events(11, 400)
    clock = ManualClock(lab.START)
    workers: list[Worker] = []
    try:
        for number, start in enumerate(range(0, 400, 100)):
            log.append_blocking(Topic.TURNS, events[start : start + 100])
            if number < 3:
                workers.append(Worker(log, store, lab.SPEC, clock))
            else:
                workers.pop(0).stop()
            wait_for(lambda: all(worker.owns for worker in workers))
        expected = lab.score(lab.SPEC, events)
        wait_for(lambda: len(emitted(store)) == len(expected))
        clock.advance_to(lab.at(10_000))  # all waits end, each in the scorer that owns it
        expected = lab.score(lab.SPEC, events, until=lab.at(10_000))
        wait_for(lambda: len(emitted(store)) == len(expected))
        wait_for(lambda: waiting(store) == 0)
    finally:
        for worker in workers:
            worker.stop()
    assert sorted(emitted(store), key=repr) == sorted(expected, key=repr)
    check_published(log, expected)


def check_published(log: KafkaEventLog, expected: list[Reward]) -> None:
    reader = log.reader([Topic.REWARDS])
    published = [record.event for record in read(reader, len(expected), 100)]
    reader.close()
    assert sorted(published, key=repr) == sorted(expected, key=repr), "each once, since nobody was killed"
    of_turn = sorted((event.inference_id, place, event.revision) for place, event in enumerate(published))  # type: ignore[union-attr]
    for _, revisions in itertools.groupby(of_turn, key=lambda entry: entry[0]):
        numbers = [revision for _, _, revision in revisions]
        assert numbers == list(range(len(numbers))), "in order"
