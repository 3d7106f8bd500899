"""Topics of a test's own on a Kafka, and changes made to them from outside."""

import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from kafka import KafkaAdminClient
from waiting import wait_for

from core.errors import LogUnavailable
from core.events import Topic
from core.ports import LogReader, Record
from core.settings import KafkaSettings
from ingest.kafka.clients import topic_name
from ingest.kafka.log import KafkaEventLog
from ingest.kafka.topics import migrate

PARTITIONS = 4


@contextmanager
def topics_of_our_own(servers: Sequence[str], **settings: Any) -> Iterator[KafkaSettings]:
    """Yield settings whose topics exist; they are deleted afterwards."""
    made = KafkaSettings(bootstrap_servers=tuple(servers), prefix=f"test-{uuid.uuid4().hex[:12]}-", **settings)
    migrate(made, PARTITIONS)
    yield made
    with admin_of(made) as admin:
        admin.delete_topics([topic_name(made, topic) for topic in Topic])


@contextmanager
def admin_of(settings: KafkaSettings) -> Iterator[Any]:
    admin = KafkaAdminClient(bootstrap_servers=list(settings.bootstrap_servers))
    try:
        yield admin
    finally:
        admin.close()


def open_log(settings: KafkaSettings) -> KafkaEventLog:
    """Return a log that is connected."""
    log = KafkaEventLog(settings)
    wait_for(lambda: is_there(log))
    return log


def is_there(log: KafkaEventLog) -> bool:
    try:
        log.partitions(Topic.TURNS)
    except LogUnavailable:
        return False
    return True


def read(reader: LogReader, count: int, max_records: int = 7) -> list[Record]:
    """Read exactly `count` records."""
    records: list[Record] = []
    deadline = time.monotonic() + 120.0
    while len(records) < count:
        assert time.monotonic() < deadline, f"{len(records)} of {count} records"
        batch = reader.poll(min(max_records, count - len(records)), 0.2)
        assert len(batch) <= max_records
        records += batch
    return records
