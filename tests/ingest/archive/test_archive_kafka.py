"""Archive and retention of a log on Kafka, where a whole partition may be deleted."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from kafka_world import open_log, topics_of_our_own
from ready_stores import open_ready
from services import require_services

from core.blobs import FsspecBlobs
from core.clock import SystemClock
from core.events import Event, SessionEnded, Topic
from core.ids import Namespace, SessionId
from core.ports import Record, TopicPartition
from core.store import SqlStore
from ingest.archive.archive import TOPICS, Archiver
from ingest.archive.history import History
from ingest.archive.keeper import Keeper
from ingest.archive.retention import Retention, archived
from ingest.kafka.log import KafkaEventLog


@pytest.fixture
def log() -> Iterator[KafkaEventLog]:
    with topics_of_our_own(require_services().kafka) as settings:
        log = open_log(settings)
        yield log
        log.close()


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqlStore]:
    store = open_ready(tmp_path / "store.db")
    yield store
    store.close()


def events(first: int, count: int) -> list[Event]:
    return [
        SessionEnded(session_id=SessionId(f"s{n}"), namespace=Namespace(f"n{n % 3}"), received_at=SystemClock().now())
        for n in range(first, first + count)
    ]


def by_place(records: list[Record]) -> list[Record]:
    return sorted(records, key=lambda record: (record.source, record.offset))


def test_what_kafka_no_longer_has_is_read_from_the_archive(log: KafkaEventLog, store: SqlStore, tmp_path: Path) -> None:
    blobs = FsspecBlobs(tmp_path / "blobs")
    sources = [TopicPartition(Topic.TURNS, index) for index in range(log.partitions(Topic.TURNS))]

    def history() -> list[Record]:
        return by_place([record for batch in History(log, blobs, Topic.TURNS).read() for record in batch])

    def keep() -> None:
        """Archive everything, and delete all that is archived."""
        retention = Retention(log, store, SystemClock(), -60.0, dict.fromkeys(TOPICS, (archived,)))
        for _ in Keeper(log, Archiver(log, store, blobs, 3000), retention, 60.0).round():
            pass

    log.append_blocking(Topic.TURNS, events(0, 120))
    first = history()
    assert len(first) == 120
    keep()
    assert all(log.earliest(source) == log.end(source) for source in sources)
    assert history() == first, "all of it from the archive"
    log.append_blocking(Topic.TURNS, events(120, 60))
    both = history()
    assert len(both) == 180
    assert [record for record in both if record in first] == first
    keep()
    assert history() == both
