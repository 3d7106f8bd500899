"""The embedded log beyond the port's contract: other processes, full disks, broken files."""

import sqlite3
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest

from core.codec import SCHEMA_VERSION
from core.errors import ConfigError, GroupBusy, LogError, LogUnavailable, NewerSchema
from core.events import Completion, SessionEnded, Topic
from core.ids import Namespace, SessionId
from core.ports import Record
from core.store import open_sqlite
from ingest.sqlite.log import SqliteEventLog
from ingest.sqlite.schema import connect

NOW = datetime(2026, 3, 1, tzinfo=UTC)
FULL = 2  # as SQLite numbers it
APPEND = """
import sys
from datetime import UTC, datetime
from pathlib import Path
from core.events import SessionEnded, Topic
from ingest.sqlite.log import SqliteEventLog

log = SqliteEventLog(Path(sys.argv[1]), 2, 0.01)
def append(name):
    event = SessionEnded(session_id=name, namespace="n", received_at=datetime.now(UTC))
    return log.append_blocking(Topic.TURNS, [event])[0]
"""


def child(script: str, *arguments: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", APPEND + script, *map(str, arguments)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def put_raw(path: Path, raw: bytes, partition: int = 0) -> None:
    """Insert a raw record, as another build or a fault could have left it."""
    with sqlite3.connect(path) as connection:
        latest = connection.execute("SELECT coalesce(max(sequence), 0) FROM records").fetchone()[0]
        offset = connection.execute(
            "SELECT coalesce(max(record_offset) + 1, 0) FROM records WHERE partition = ?", (partition,)
        ).fetchone()[0]
        row = (latest + 1, Topic.TURNS, partition, offset, 0, raw)
        connection.execute("INSERT INTO records VALUES (?, ?, ?, ?, ?, ?)", row)
    connection.close()


def test_a_poll_returns_no_more_bytes_than_fit_in_memory(tmp_path: Path) -> None:
    log = SqliteEventLog(tmp_path / "log.db", 2, 0.01)
    large = "w" * (4 << 20)
    events = [
        SessionEnded(session_id=SessionId(f"{n}{large}"), namespace=Namespace("n"), received_at=NOW) for n in range(12)
    ]
    for event in events:
        log.append_blocking(Topic.TURNS, [event])
    consumer = log.consumer("reader", [Topic.TURNS])
    polls = [consumer.poll(100, 0.0) for _ in range(4)]
    assert [len(records) for records in polls] == [4, 4, 4, 0]
    assert [record.event for records in polls for record in records] == events
    consumer.close()
    log.close()


def read_all(log: SqliteEventLog, group: str = "reader") -> list[Record]:
    consumer = log.consumer(group, [Topic.TURNS])
    records: list[Record] = []
    while batch := consumer.poll(100, 0.0):
        records += batch
    consumer.close()
    return records


def test_a_member_in_another_process_is_refused_until_it_dies(log: SqliteEventLog, tmp_path: Path) -> None:
    other = child("c = log.consumer('g', [Topic.TURNS]); print('in', flush=True); input()", tmp_path / "log.db")
    assert other.stdout is not None
    assert other.stdout.readline() == "in\n"
    with pytest.raises(GroupBusy, match=str(other.pid)):
        log.consumer("g", [Topic.TURNS])
    other.kill()
    other.communicate()
    log.consumer("g", [Topic.TURNS]).close()


def test_processes_append_to_one_log(
    log: SqliteEventLog, completion: Callable[..., Completion], tmp_path: Path
) -> None:
    others = [child(f"for i in range(50): append(f'{name}-{{i}}')", tmp_path / "log.db") for name in "ab"]
    for index in range(50):
        log.append_blocking(Topic.TURNS, [completion(SessionId(f"c-{index}"))])
    for other in others:
        other.communicate()
        assert other.returncode == 0
    records = read_all(log)
    sessions = [record.event.session_id for record in records if record.event is not None]  # type: ignore[union-attr]
    assert sorted(sessions) == sorted(f"{name}-{index}" for name in "abc" for index in range(50))
    for partition in range(2):
        offsets = [record.offset for record in records if record.partition == partition]
        assert offsets == list(range(len(offsets)))


def test_a_reader_sees_what_another_process_appends(log: SqliteEventLog, tmp_path: Path) -> None:
    consumer = log.consumer("g", [Topic.TURNS])
    other = child("append('from elsewhere')", tmp_path / "log.db")
    records = consumer.poll(10, 60.0)
    other.communicate()
    consumer.close()
    assert [record.event.session_id for record in records] == ["from elsewhere"]  # type: ignore[union-attr]


def test_what_does_not_decode_comes_raw_with_its_error(
    log: SqliteEventLog, completion: Callable[..., Completion], tmp_path: Path
) -> None:
    put_raw(tmp_path / "log.db", b"garbage")
    log.append_blocking(Topic.TURNS, [completion()])
    broken, whole = read_all(log)
    assert (broken.raw, broken.event) == (b"garbage", None)
    assert broken.error
    assert isinstance(whole.event, Completion)


def test_a_newer_schema_stops_the_reader_before_it(
    log: SqliteEventLog, completion: Callable[..., Completion], tmp_path: Path
) -> None:
    log.append_blocking(Topic.TURNS, [completion()])
    put_raw(tmp_path / "log.db", msgspec.msgpack.encode([SCHEMA_VERSION + 1, {}]), partition=1)
    log.append_blocking(Topic.TURNS, [completion()])
    consumer = log.consumer("g", [Topic.TURNS])
    assert len(consumer.poll(10, 0.0)) == 1
    before = {source: consumer.position(source) for source in consumer.assignment()}
    for _ in range(2):
        with pytest.raises(NewerSchema, match=rf"log\.db: onward\.turns:1 offset \d+: schema {SCHEMA_VERSION + 1}"):
            consumer.poll(10, 0.0)
    assert {source: consumer.position(source) for source in consumer.assignment()} == before
    consumer.close()


def test_a_locked_log_is_unavailable_and_then_usable(completion: Callable[..., Completion], tmp_path: Path) -> None:
    log = SqliteEventLog(tmp_path / "log.db", 2, 0.01, busy_timeout_s=0.05)
    lock = sqlite3.connect(tmp_path / "log.db", isolation_level=None)
    lock.execute("BEGIN IMMEDIATE")
    with pytest.raises(LogUnavailable, match=r"log\.db"):
        log.append_blocking(Topic.TURNS, [completion()])
    lock.execute("ROLLBACK")
    lock.close()
    assert log.append_blocking(Topic.TURNS, [completion(SessionId("s"))])[0].offset == 0
    assert len(read_all(log)) == 1
    log.close()


def test_a_batch_that_fails_half_way_leaves_no_gap(log: SqliteEventLog, completion: Callable[..., Completion]) -> None:
    turns = [completion(SessionId("one session")) for _ in range(400)]
    log.append_blocking(Topic.TURNS, turns[:1])
    pages = log._writer.execute("PRAGMA page_count").fetchone()[0]
    log._writer.execute(f"PRAGMA max_page_count = {pages + 20}")
    with pytest.raises(LogUnavailable, match=r"log\.db: database or disk is full"):
        log.append_blocking(Topic.TURNS, turns)
    log._writer.execute("PRAGMA max_page_count = 1000000")
    assert [position.offset for position in log.append_blocking(Topic.TURNS, turns[1:3])] == [1, 2]
    assert [record.event for record in read_all(log)] == turns[:3]


FULL_DISK = """
import json, resource
from core.errors import LogUnavailable
append("before")
unlimited = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, unlimited[1]))  # the write-ahead log cannot grow past it
taken, error = ["before"], None
for index in range(1000):
    try:
        append(f"{index}" + "x" * 2000)
        taken.append(str(index))
    except LogUnavailable as caught:
        error = str(caught)
        break
resource.setrlimit(resource.RLIMIT_FSIZE, unlimited)
append("after")
print(json.dumps({"taken": [*taken, "after"], "error": error}))
"""


def test_a_full_disk_refuses_appends_and_loses_nothing(tmp_path: Path) -> None:
    output, _ = child(FULL_DISK, tmp_path / "log.db").communicate()
    result = msgspec.json.decode(output)
    assert "log.db" in result["error"]
    log = SqliteEventLog(tmp_path / "log.db", 2, 0.01)
    sessions = [record.event.session_id.rstrip("x") for record in read_all(log)]  # type: ignore[union-attr]
    assert sessions == result["taken"]
    log.close()


def test_a_file_that_is_no_log_is_named(tmp_path: Path) -> None:
    (tmp_path / "log.db").write_bytes(b"this is no database, although it is long enough" * 100)
    with pytest.raises(LogError, match=r"log\.db"):
        SqliteEventLog(tmp_path / "log.db", 2, 0.01)


def test_a_log_corrupted_inside_is_named_when_read(completion: Callable[..., Completion], tmp_path: Path) -> None:
    log = SqliteEventLog(tmp_path / "log.db", 2, 0.01)
    log.append_blocking(Topic.TURNS, [completion() for _ in range(300)])
    log.close()
    content = bytearray((tmp_path / "log.db").read_bytes())
    for page in range(3, len(content) // 4096):
        content[page * 4096 : page * 4096 + 64] = b"\xff" * 64
    (tmp_path / "log.db").write_bytes(content)
    log = SqliteEventLog(tmp_path / "log.db", 2, 0.01)
    with pytest.raises(LogError, match=r"log\.db"):
        read_all(log)
    log.close()


def test_the_number_of_partitions_is_fixed(log: SqliteEventLog, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"ingest\.partitions: .*log\.db was made with 2, not 3"):
        SqliteEventLog(tmp_path / "log.db", 3, 0.01)


def test_a_log_of_another_layout_is_refused(log: SqliteEventLog, tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "log.db") as connection:
        connection.execute("UPDATE meta SET value = 99 WHERE key = 'schema'")
    connection.close()
    with pytest.raises(ConfigError, match=r"log\.db: schema 99"):
        SqliteEventLog(tmp_path / "log.db", 2, 0.01)


def test_a_batch_that_fails_midway_leaves_nothing(completion: Callable[..., Completion], tmp_path: Path) -> None:
    """Its statement does not undo its own rows: the transaction does."""
    log = SqliteEventLog(tmp_path / "log.db", 1, 0.01)
    log.append_blocking(Topic.TURNS, [completion()])
    with sqlite3.connect(tmp_path / "log.db") as other:  # takes an offset, and leaves no trace in the order
        other.execute("INSERT INTO records VALUES (0, ?, 0, 3, 0, x'')", (Topic.TURNS,))
    other.close()
    with pytest.raises(LogError, match=r"log\.db"):
        log.append_blocking(Topic.TURNS, [completion() for _ in range(5)])
    with sqlite3.connect(tmp_path / "log.db") as other:
        kept = other.execute("SELECT record_offset FROM records ORDER BY record_offset").fetchall()
        other.execute("DELETE FROM records WHERE record_offset = 3")
    other.close()
    assert kept == [(0,), (3,)]
    assert [place.offset for place in log.append_blocking(Topic.TURNS, [completion(), completion()])] == [1, 2]
    log.close()


def test_a_file_with_pages_of_another_size_is_read_and_written(
    completion: Callable[..., Completion], tmp_path: Path
) -> None:
    with sqlite3.connect(tmp_path / "log.db") as older:
        older.execute("PRAGMA page_size=4096")
        older.execute("PRAGMA journal_mode=WAL")
        older.execute("CREATE TABLE other (name TEXT)")
    older.close()
    log = SqliteEventLog(tmp_path / "log.db", 2, 0.01)
    log.append_blocking(Topic.TURNS, [completion() for _ in range(40)])
    assert len(read_all(log)) == 40
    log.close()
    with sqlite3.connect(tmp_path / "log.db") as opened:
        assert opened.execute("PRAGMA page_size").fetchone() == (4096,)
    opened.close()


def test_what_is_acknowledged_is_on_the_disk(tmp_path: Path) -> None:
    """A commit of the log waits for the disk, and one of the store: no loss of the host's memory undoes it."""
    log = connect(tmp_path / "log.db", 5.0)
    store = open_sqlite(tmp_path / "store.db")
    with store.begin() as connection:
        of_store = connection.exec_driver_sql("PRAGMA synchronous").scalar()
    assert (log.execute("PRAGMA synchronous").fetchone(), of_store) == ((FULL,), FULL)
    log.close()
    store.close()


def test_a_missing_directory_is_named(tmp_path: Path) -> None:
    with pytest.raises(LogUnavailable, match=r"nowhere.log\.db"):
        SqliteEventLog(tmp_path / "nowhere" / "log.db", 2, 0.01)


KILLED = r"""
import os, threading
def run(name):
    index = 0
    while True:
        append(f"{name}-{index}")
        os.write(1, f"{name}-{index}\n".encode())  # one write: lines of threads do not mix
        index += 1
for name in range(4):
    threading.Thread(target=run, args=(name,), daemon=True).start()
threading.Event().wait()
"""


@pytest.mark.parametrize("acknowledged", [1, 40, 333])
def test_kill_9_loses_nothing_acknowledged_and_doubles_nothing(tmp_path: Path, acknowledged: int) -> None:
    writer = child(KILLED, tmp_path / "log.db")
    assert writer.stdout is not None
    seen = [writer.stdout.readline().strip() for _ in range(acknowledged)]
    writer.kill()
    seen += writer.stdout.read().split("\n")[:-1]  # a last line without its end was not said
    writer.communicate()
    log = SqliteEventLog(tmp_path / "log.db", 2, 0.01)
    records = read_all(log)
    log.append_blocking(
        Topic.TURNS, [SessionEnded(session_id=SessionId("z"), namespace=Namespace("n"), received_at=NOW)]
    )
    assert len(read_all(log, "again")) == len(records) + 1
    log.close()
    sessions = [record.event.session_id for record in records]  # type: ignore[union-attr]
    assert len(sessions) == len(set(sessions))
    assert set(seen) <= set(sessions)
    assert len(sessions) - len(seen) <= 8, "at most what each thread had under way, and its last line"
