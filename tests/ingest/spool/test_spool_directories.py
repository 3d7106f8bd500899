"""Each process has its own spool under one root; one whose process is gone is adopted and drained."""

import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from made_events import ended
from stepping import step

from core.events import SessionEnded, Topic
from ingest.spool.directories import Orphans, claim
from ingest.spool.spool import SpoolingLog
from ingest.sqlite.log import SqliteEventLog

REPLICA = r"""
import os, sys
from datetime import UTC, datetime
from pathlib import Path
from core.events import SessionEnded, Topic
from ingest.spool.spool import SpoolingLog
from ingest.spool.directories import claim
from ingest.sqlite.log import SqliteEventLog

directory = Path(sys.argv[1])
log = SpoolingLog(
    SqliteEventLog(directory / "log.db", 2, 0.01, busy_timeout_s=0.02), claim(directory / "spools").path, 1 << 20
)
for index in range(5):
    event = SessionEnded(session_id=f"{os.getpid()}-{index}", namespace="n", received_at=datetime.now(UTC))
    log.append_blocking(Topic.TURNS, [event])
print("spooled", flush=True)
sys.stdin.read()
"""


@contextmanager
def down(directory: Path) -> Iterator[None]:
    lock = sqlite3.connect(directory / "log.db", isolation_level=None)
    lock.execute("BEGIN IMMEDIATE")
    yield
    lock.execute("ROLLBACK")
    lock.close()


def test_each_has_a_directory_of_its_own_and_takes_over_one_that_is_free(tmp_path: Path) -> None:
    first, second = claim(tmp_path), claim(tmp_path)
    assert first.path != second.path
    path = first.path
    first.release()
    third = claim(tmp_path)
    assert third.path == path
    second.release()
    third.release()


@pytest.mark.parametrize("replicas", [1, 3])
def test_what_killed_replicas_left_follows_into_the_log(tmp_path: Path, replicas: int) -> None:
    inner = SqliteEventLog(tmp_path / "log.db", 2, 0.01)
    mine = claim(tmp_path / "spools")
    with down(tmp_path):
        processes = [
            subprocess.Popen([sys.executable, "-c", REPLICA, tmp_path], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            for _ in range(replicas)
        ]
        for process in processes:
            assert process.stdout is not None
            assert process.stdout.readline() == b"spooled\n"
        orphans = Orphans(tmp_path / "spools", lambda path: SpoolingLog(inner, path, 1 << 20))
        assert step(orphans, 0.0) == 0, "those that live keep theirs"
        for process in processes:  # before they can let anything follow themselves, which might then be there twice
            process.kill()
            process.communicate()
    deadline_s = time.monotonic() + 120
    adopted = 0
    while adopted < replicas and time.monotonic() < deadline_s:
        adopted += step(orphans, 0.01)
    orphans.close()
    mine.release()
    wanted = [f"{process.pid}-{index}" for process in processes for index in range(5)]
    assert sorted(sessions(inner)) == sorted(wanted)
    inner.close()


def test_what_is_adopted_and_not_drained_waits_for_the_next(tmp_path: Path) -> None:
    inner = SqliteEventLog(tmp_path / "log.db", 2, 0.01, busy_timeout_s=0.02)
    with down(tmp_path):
        spool = SpoolingLog(inner, (held := claim(tmp_path / "spools")).path, 1 << 20)
        spool.append_blocking(Topic.TURNS, [ended("waits")])
        spool.close_spool()
        held.release()
        orphans = Orphans(tmp_path / "spools", lambda path: SpoolingLog(inner, path, 1 << 20))
        assert step(orphans, 0.0) == 0
        assert step(orphans, 0.0) == 0
        orphans.close()
    spool = SpoolingLog(inner, (again := claim(tmp_path / "spools")).path, 1 << 20)
    deadline_s = time.monotonic() + 120
    while spool.depth_records and time.monotonic() < deadline_s:
        time.sleep(0.005)
    assert again.path == held.path
    assert sessions(inner) == ["waits"]
    spool.close()
    again.release()


def sessions(log: SqliteEventLog) -> list[str]:
    consumer = log.consumer("test", [Topic.TURNS])
    found = [record.event for record in consumer.poll(100, 0.0)]
    consumer.close()
    return [event.session_id for event in found if isinstance(event, SessionEnded)]
