"""The writer moves events from the log to the store exactly once, whatever happens in between."""

import random
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest
from kept_spans import kept_spans
from sqlalchemy import func, select
from stepping import step

from core import telemetry
from core.clock import SystemClock
from core.codec import SCHEMA_VERSION
from core.errors import LogError, NewerSchema
from core.events import Completion, DeadLetter, Outcome, SessionEnded, Topic
from core.ids import SessionId, new_inference_id
from core.settings import IngestSettings
from core.store import SqlStore, open_sqlite
from core.store.database import tables
from ingest.sqlite.log import SqliteEventLog
from ingest.writer import GROUP, Writer

SETTINGS = IngestSettings(partitions=2, batch_records=16)
NOW = datetime(2026, 3, 1, tzinfo=UTC)


@pytest.fixture
def writer(log: SqliteEventLog, store: SqlStore) -> Iterator[Writer]:
    writer = Writer(log, store, SETTINGS, SystemClock())
    yield writer
    writer.close()


def drain(writer: Writer) -> int:
    total = 0
    while done := step(writer, 0.0):
        total += done
    return total


def count(store: SqlStore, table: str) -> int:
    with store.read() as connection:
        return connection.execute(select(func.count()).select_from(tables.metadata.tables[table])).scalar() or 0


def duplicates() -> float:
    return telemetry.DUPLICATES.labels(topic=Topic.TURNS)._value.get()


def put_raw(path: Path, raw: bytes) -> None:
    with sqlite3.connect(path) as connection:
        query = "SELECT coalesce(max(sequence), 0) + 1, coalesce(max(record_offset) + 1, 0) FROM records"
        sequence = connection.execute(query).fetchone()[0]
        offset = connection.execute(query + " WHERE partition = 0").fetchone()[1]
        connection.execute("INSERT INTO records VALUES (?, 'onward.turns', 0, ?, 0, ?)", (sequence, offset, raw))
    connection.close()


def test_turns_and_outcomes_arrive_whole(
    log: SqliteEventLog,
    store: SqlStore,
    writer: Writer,
    completion: Callable[..., Completion],
    outcome: Callable[[Completion], Outcome],
) -> None:
    turns = [completion() for _ in range(20)]
    log.append_blocking(Topic.TURNS, turns)
    log.append_blocking(Topic.TURNS, [outcome(turn) for turn in turns])
    log.append_blocking(
        Topic.TURNS, [SessionEnded(session_id=turns[0].session_id, namespace=turns[0].namespace, received_at=NOW)]
    )
    handled = telemetry.STAGE_RECORDS.labels(part="Writer")
    handled_before = handled._value.get()
    assert drain(writer) == 41
    assert handled._value.get() == handled_before + 41
    with store.look() as view:
        assert [view.turns.get(turn.namespace, turn.inference_id) for turn in turns] == turns
        offsets = view.offsets.of_group(GROUP)
    assert count(store, "outcomes") == 20
    assert count(store, "dead_letters") == 0
    assert offsets == {source: log.end(source) for source in offsets}
    assert telemetry.WRITER_LAG._value.get() == 0


def test_an_event_that_stands_in_the_log_twice_is_stored_once(
    log: SqliteEventLog,
    store: SqlStore,
    writer: Writer,
    completion: Callable[..., Completion],
    outcome: Callable[[Completion], Outcome],
) -> None:
    turn = completion()
    said = outcome(turn)
    before = duplicates()
    log.append_blocking(Topic.TURNS, [turn, turn, said])
    drain(writer)
    log.append_blocking(Topic.TURNS, [turn, said, said])
    drain(writer)
    assert (count(store, "turns"), count(store, "outcomes")) == (1, 1)
    assert duplicates() - before == 4


def test_a_turn_is_traced_into_the_store(
    log: SqliteEventLog,
    writer: Writer,
    completion: Callable[..., Completion],
    outcome: Callable[[Completion], Outcome],
) -> None:
    turn = completion(inference_id=new_inference_id(SessionId("s")), session_id=SessionId("s"))
    log.append_blocking(Topic.TURNS, [turn, outcome(turn)])
    with kept_spans() as kept:
        drain(writer)
        (span,) = kept.spans
        assert kept.of_turn(turn.inference_id) == {"store": span}
    assert span.began_at <= span.ended_at


def test_it_goes_on_where_the_store_stands_not_the_group(
    log: SqliteEventLog, store: SqlStore, completion: Callable[..., Completion]
) -> None:
    log.append_blocking(Topic.TURNS, [completion() for _ in range(10)])
    first = Writer(log, store, SETTINGS, SystemClock())
    drain(first)
    first.close()
    ahead = log.consumer(GROUP, [Topic.TURNS])
    log.append_blocking(Topic.TURNS, [completion() for _ in range(10)])
    ahead.commit({source: log.end(source) for source in ahead.assignment()})  # as if a commit had outrun the store
    ahead.close()
    before = duplicates()
    second = Writer(log, store, SETTINGS, SystemClock())
    assert drain(second) == 10
    second.close()
    assert count(store, "turns") == 20
    assert duplicates() == before


def test_what_does_not_decode_is_set_aside_and_announced(
    log: SqliteEventLog, store: SqlStore, writer: Writer, completion: Callable[..., Completion], tmp_path: Path
) -> None:
    log.append_blocking(Topic.TURNS, [completion()])
    put_raw(tmp_path / "log.db", b"\xff garbage")
    stray = DeadLetter(topic="t", partition=0, offset=0, reason="", raw=b"", at=NOW)
    log.append_blocking(Topic.TURNS, [stray, completion()])
    assert drain(writer) == 4
    assert count(store, "turns") == 2
    with store.look() as view:
        letters = view.dead_letters.newest(10)
    consumer = log.consumer("operators", [Topic.DEAD_LETTERS])
    announced = [record.event for record in consumer.poll(10, 0.0)]
    consumer.close()
    assert sorted(letters, key=lambda letter: letter.offset) == announced
    garbage, misplaced = announced
    assert isinstance(garbage, DeadLetter)
    assert isinstance(misplaced, DeadLetter)
    assert garbage.raw == b"\xff garbage"
    assert "DeadLetter does not belong into onward.turns" in misplaced.reason


def test_a_newer_schema_stops_it_and_nothing_is_skipped(
    log: SqliteEventLog, store: SqlStore, writer: Writer, completion: Callable[..., Completion], tmp_path: Path
) -> None:
    log.append_blocking(Topic.TURNS, [completion()])
    put_raw(tmp_path / "log.db", msgspec.msgpack.encode([SCHEMA_VERSION + 1, {}]))
    log.append_blocking(Topic.TURNS, [completion()])
    assert step(writer, 0.0) == 1
    with pytest.raises(NewerSchema, match=r"onward\.turns:0 offset \d+"):
        step(writer, 0.0)
    assert count(store, "turns") == 1


def test_a_store_that_is_away_is_waited_for(
    log: SqliteEventLog, completion: Callable[..., Completion], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("core.store.database.sqlite._BUSY_TIMEOUT_S", 0.05)
    store = open_sqlite(tmp_path / "store.db")
    writer = Writer(log, store, SETTINGS, SystemClock())
    log.append_blocking(Topic.TURNS, [completion()])
    lock = sqlite3.connect(tmp_path / "store.db", isolation_level=None)
    lock.execute("BEGIN IMMEDIATE")
    assert step(writer, 0.0) == 0
    lock.execute("ROLLBACK")
    lock.close()
    assert step(writer, 0.0) == 1
    assert count(store, "turns") == 1
    writer.close()
    store.close()


def test_a_log_that_takes_no_commits_does_not_undo_the_store(
    store: SqlStore, completion: Callable[..., Completion], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = SqliteEventLog(tmp_path / "log.db", 2, 0.01, busy_timeout_s=0.02)
    writer = Writer(log, store, SETTINGS, SystemClock())
    drain(writer)  # it owns its partitions
    log.append_blocking(Topic.TURNS, [completion()])
    before = duplicates()
    lock = sqlite3.connect(tmp_path / "log.db", isolation_level=None)
    lock.execute("BEGIN IMMEDIATE")
    step(writer, 0.0)
    assert count(store, "turns") == 1
    lock.execute("ROLLBACK")
    lock.close()
    assert step(writer, 0.0) == 0
    assert duplicates() == before
    writer.close()
    log.close()


def test_a_writer_that_lost_its_group_writes_nothing_and_goes_on_trying(
    log: SqliteEventLog,
    store: SqlStore,
    completion: Callable[..., Completion],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    old = Writer(log, store, SETTINGS, SystemClock())
    log.append_blocking(Topic.TURNS, [completion()])
    assert drain(old) == 1
    (tmp_path / "log.db-groups" / "writer.lock").unlink()
    new = Writer(log, store, SETTINGS, SystemClock())
    assert drain(new) == 0, "it took over, and there was nothing to do"
    log.append_blocking(Topic.TURNS, [completion()])
    assert [step(old, 0.0) for _ in range(3)] == [0, 0, 0]
    assert count(store, "turns") == 1, "the offsets were refused, and the turns with them"
    assert drain(new) == 1, "and it took nothing from the new one"
    old.close()
    new.close()


def test_a_store_of_another_log_is_refused(
    log: SqliteEventLog, store: SqlStore, completion: Callable[..., Completion], tmp_path: Path
) -> None:
    log.append_blocking(Topic.TURNS, [completion()])
    writer = Writer(log, store, SETTINGS, SystemClock())
    drain(writer)
    writer.close()
    other = SqliteEventLog(tmp_path / "other.db", 2, 0.01)
    misled = Writer(other, store, SETTINGS, SystemClock())
    with pytest.raises(LogError, match="but the log ends at 0"):
        step(misled, 0.0)
    misled.close()
    other.close()


WRITE = """
import sys
from pathlib import Path
from core.clock import SystemClock
from core.settings import IngestSettings
from core.stages.rounds import Rounds
from core.store import open_sqlite
from ingest.sqlite.log import SqliteEventLog
from ingest.writer import Writer

log = SqliteEventLog(Path(sys.argv[1]) / "log.db", 2, 0.01)
store = open_sqlite(Path(sys.argv[1]) / "store.db")
writer = Writer(log, store, IngestSettings(partitions=2, batch_records=16), SystemClock())
rounds = Rounds("writer", writer)
for _permit in sys.stdin:
    print(rounds.step(0.1), flush=True)
"""


def test_kill_9_in_mid_way_leaves_every_event_in_the_store_once(
    log: SqliteEventLog,
    store: SqlStore,
    completion: Callable[..., Completion],
    outcome: Callable[[Completion], Outcome],
    tmp_path: Path,
) -> None:
    turns = [completion(SessionId(f"s{index}")) for index in range(1500)]
    log.append_blocking(Topic.TURNS, turns)
    log.append_blocking(Topic.TURNS, [outcome(turn) for turn in turns])
    before = duplicates()
    for batches in (1, 9, 30):
        command = [sys.executable, "-c", WRITE, tmp_path]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write("\n" * batches)
        process.stdin.flush()
        for _ in range(batches - 1):
            assert int(process.stdout.readline()) > 0
        time.sleep(0.004 * random.random())  # some moment of the last batch
        process.kill()
        process.communicate()
    assert 0 < count(store, "turns") + count(store, "outcomes") < 3000, "killed in mid-way"
    writer = Writer(log, store, SETTINGS, SystemClock())
    drain(writer)
    writer.close()
    assert (count(store, "turns"), count(store, "outcomes")) == (1500, 1500)
    assert duplicates() == before, "offsets and contents moved together: nothing was read twice"
