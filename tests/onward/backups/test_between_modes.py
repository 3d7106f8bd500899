"""A backup of a directory, restored on Kafka and Postgres, and one of those, restored in a directory."""

import uuid
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import made_events
import pytest
from kafka_world import admin_of
from services import require_services
from stores import server_database

from core.errors import Conflict
from core.events import Topic
from core.ports import TopicPartition
from core.records.whole_log import read_whole
from core.settings import KafkaSettings
from core.store.database import copies
from ingest.kafka.clients import topic_name
from onward.backups.backup import back_up
from onward.backups.restore import restore
from onward.replays.history import await_log
from onward.wiring.foundation import open_foundation

TURNS = 20
ONE = {"ONWARD_INGEST__PARTITIONS": "1"}


@pytest.fixture
def servers() -> Iterator[dict[str, str]]:
    """Yield what names empty topics, which are deleted afterwards, and an empty database."""
    bootstrap, prefix = require_services().kafka, f"test-{uuid.uuid4().hex[:12]}-"
    with server_database() as postgres:
        yield ONE | {
            "ONWARD_MODE": "distributed",
            "ONWARD_KAFKA__BOOTSTRAP_SERVERS": str(list(bootstrap)).replace("'", '"'),
            "ONWARD_KAFKA__PREFIX": prefix,
            "ONWARD_POSTGRES__URL": postgres.url,
        }
    kafka = KafkaSettings(bootstrap_servers=bootstrap, prefix=prefix)
    with admin_of(kafka) as admin:
        admin.delete_topics([topic_name(kafka, topic) for topic in Topic])


def content(directory: Path, overrides: dict[str, str]) -> tuple[Any, ...]:
    with closing(open_foundation(directory, overrides)) as foundation, foundation.store.read() as connection:
        await_log(foundation.log)
        rows = [(table, [tuple(row) for row in found]) for table, found in copies.read_rows(connection)]
        records = [
            (record.topic, record.offset, record.raw)
            for topic in Topic
            for batch in read_whole(foundation.log, topic)
            for record in batch
            if record.raw
        ]
        ends = [foundation.log.end(TopicPartition(topic, 0)) for topic in Topic]
    return rows, records, ends


def test_a_service_moves_from_one_mode_to_the_other_and_back(servers: dict[str, str], tmp_path: Path) -> None:
    """All of one topic was deleted: what comes next has the next offset all the same."""
    turns = [made_events.completion() for _ in range(TURNS)]
    with closing(open_foundation(tmp_path / "first", ONE)) as foundation:
        foundation.log.append_blocking(Topic.TURNS, turns)
        with foundation.store.work() as work:
            work.turns.put(turns)
    back_up(tmp_path / "first", tmp_path / "of-first", ONE)
    restore(tmp_path / "of-first", tmp_path / "second", servers)
    first = content(tmp_path / "first", ONE)
    assert content(tmp_path / "second", servers) == first
    with pytest.raises(Conflict, match="the store is not empty"):
        restore(tmp_path / "of-first", tmp_path / "again", servers)

    emptied = TopicPartition(Topic.TURNS, 0)
    with closing(open_foundation(tmp_path / "second", servers)) as foundation:
        foundation.log.delete_before(emptied, TURNS)
    back_up(tmp_path / "second", tmp_path / "of-second", servers)
    restore(tmp_path / "of-second", tmp_path / "third", ONE)
    assert content(tmp_path / "third", ONE) == (first[0], [], first[2])
    with closing(open_foundation(tmp_path / "third", ONE)) as foundation:
        (position,) = foundation.log.append_blocking(Topic.TURNS, turns[:1])
    assert position.offset == TURNS
