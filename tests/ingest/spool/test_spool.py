"""The spool keeps acknowledged events on disk while the log is down, and then drains them in order."""

import asyncio
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest
from made_events import ended
from waiting import wait_for

from core import telemetry
from core.codec import encode
from core.errors import LogUnavailable
from core.events import Completion, Event, Outcome, SessionEnded, Topic
from core.ports import TopicPartition
from ingest.spool.files import SegmentFiles, frame, read_segment
from ingest.spool.spool import SpoolingLog
from ingest.sqlite.log import SqliteEventLog

NOW = datetime(2026, 3, 1, tzinfo=UTC)


FRAME_BYTES = len(frame(msgspec.msgpack.encode([Topic.TURNS, encode(ended(0))])))


def open_log(directory: Path, max_bytes: int = 1 << 20) -> SpoolingLog:
    inner = SqliteEventLog(directory / "log.db", 2, 0.01, busy_timeout_s=0.02)
    return SpoolingLog(inner, directory / "spool", max_bytes)


@pytest.fixture
def spooling(tmp_path: Path) -> Iterator[SpoolingLog]:
    log = open_log(tmp_path)
    yield log
    log.close()


@contextmanager
def down(directory: Path) -> Iterator[None]:
    """Make every append fail: another connection holds the database."""
    lock = sqlite3.connect(directory / "log.db", isolation_level=None)
    lock.execute("BEGIN IMMEDIATE")
    yield
    lock.execute("ROLLBACK")
    lock.close()


def sessions(log: SpoolingLog | SqliteEventLog, topic: Topic = Topic.TURNS) -> list[str]:
    consumer = log.consumer("reader", [topic])
    found: list[Event | None] = []
    while records := consumer.poll(100, 0.0):
        found += [record.event for record in records]
    consumer.close()
    return [event.session_id for event in found if isinstance(event, SessionEnded)]


def test_a_log_that_works_is_used_directly(spooling: SpoolingLog, tmp_path: Path) -> None:
    position = asyncio.run(spooling.append(Topic.TURNS, ended(0)))
    assert position.offset == 0
    assert (spooling.state, spooling.depth_records) == ("ok", 0)
    assert list((tmp_path / "spool").iterdir()) == []


def test_what_the_log_refuses_waits_on_disk_and_follows_in_order(spooling: SpoolingLog, tmp_path: Path) -> None:
    asyncio.run(spooling.append(Topic.TURNS, ended(0)))
    with down(tmp_path):
        for index in range(1, 40):
            position = asyncio.run(spooling.append(Topic.TURNS, ended(index)))
            assert position.offset == -1
        assert spooling.append_blocking(Topic.REWARDS, [ended("r0"), ended("r1")])[1].offset == -1
        assert spooling.depth_records == 41
        assert spooling.state != "ok"
        assert "locked" in spooling.state
        assert telemetry.SPOOLED._value.get() == 41
        assert telemetry.SPOOL_BYTES._value.get() > 41 * 8
        assert sum(spooling.end(TopicPartition(Topic.TURNS, partition)) for partition in range(2)) == 1
    wait_for(lambda: spooling.state == "ok")
    asyncio.run(spooling.append(Topic.TURNS, ended(40)))
    assert sessions(spooling) == [str(index) for index in range(41)]
    assert sessions(spooling, Topic.REWARDS) == ["r0", "r1"]
    assert telemetry.SPOOLED._value.get() == 0
    assert telemetry.SPOOL_BYTES._value.get() == 0
    assert list((tmp_path / "spool").iterdir()) == []


def test_order_holds_while_the_log_comes_and_goes_under_load(spooling: SpoolingLog, tmp_path: Path) -> None:
    flapping = threading.Event()
    counts = dict.fromkeys("abcd", 0)

    def appended_some() -> None:
        enough = sum(counts.values()) + 20
        wait_for(lambda: sum(counts.values()) >= enough)

    def flap() -> None:
        try:
            for _ in range(8):
                with down(tmp_path):
                    appended_some()
                appended_some()
        finally:
            flapping.set()

    async def appender(name: str) -> None:
        while not flapping.is_set():
            await spooling.append(Topic.TURNS, ended(f"{name}-{counts[name]}"))
            counts[name] += 1

    async def main() -> None:
        await asyncio.gather(*(appender(name) for name in counts))

    flapper = threading.Thread(target=flap)
    flapper.start()
    asyncio.run(main())
    flapper.join()
    wait_for(lambda: spooling.state == "ok")
    found = sessions(spooling)
    consumer = spooling.consumer("partitions", [Topic.TURNS])
    order: dict[int, list[str]] = {0: [], 1: []}
    while records := consumer.poll(100, 0.0):
        for record in records:
            assert isinstance(record.event, SessionEnded)
            order[record.partition].append(record.event.session_id)
    consumer.close()
    assert sorted(found) == sorted(f"{n}-{i}" for n, count in counts.items() for i in range(count))
    for name in counts:
        mine = [session for session in found if session.startswith(name)]
        assert mine == sorted(mine, key=lambda session: int(session.split("-")[1]))


def test_past_the_bound_it_refuses_and_says_why(tmp_path: Path) -> None:
    log = open_log(tmp_path, max_bytes=500)
    taken = 0
    with down(tmp_path):
        while FRAME_BYTES * (taken + 1) <= 500:
            asyncio.run(log.append(Topic.TURNS, ended(taken)))
            taken += 1
        with pytest.raises(LogUnavailable, match=r"locked.*the spool in .*spool holds \d+ of 500 bytes"):
            asyncio.run(log.append(Topic.TURNS, ended(taken)))
        assert telemetry.SPOOL_BYTES._value.get() <= 500
        assert log.depth_records == taken > 0
    wait_for(lambda: log.state == "ok")
    assert sessions(log) == [str(index) for index in range(taken)]
    log.close()


def test_a_bound_of_zero_means_no_spool(tmp_path: Path) -> None:
    log = open_log(tmp_path, max_bytes=0)
    with down(tmp_path), pytest.raises(LogUnavailable):
        asyncio.run(log.append(Topic.TURNS, ended(0)))
    assert log.state != "ok"
    asyncio.run(log.append(Topic.TURNS, ended(1)))
    assert log.state == "ok"
    assert sessions(log) == ["1"]
    log.close()


def test_a_spool_that_cannot_be_written_refuses(spooling: SpoolingLog, tmp_path: Path) -> None:
    with down(tmp_path):
        (tmp_path / "spool").rmdir()
        (tmp_path / "spool").write_text("in the way")
        with pytest.raises(LogUnavailable, match="so is the spool"):
            asyncio.run(spooling.append(Topic.TURNS, ended(0)))
        assert spooling.depth_records == 0
        (tmp_path / "spool").unlink()
        (tmp_path / "spool").mkdir()
        asyncio.run(spooling.append(Topic.TURNS, ended(1)))
    wait_for(lambda: spooling.state == "ok")
    assert sessions(spooling) == ["1"]


def test_events_of_every_kind_pass_unchanged(
    spooling: SpoolingLog,
    tmp_path: Path,
    completion: Callable[..., Completion],
    outcome: Callable[[Completion], Outcome],
) -> None:
    turn = completion()
    with down(tmp_path):
        asyncio.run(spooling.append(Topic.TURNS, turn))
        asyncio.run(spooling.append(Topic.TURNS, outcome(turn)))
    wait_for(lambda: spooling.state == "ok")
    consumer = spooling.consumer("reader", [Topic.TURNS])
    events = [record.event for record in consumer.poll(10, 0.0)]
    consumer.close()
    assert events[0] == turn
    assert isinstance(events[1], Outcome)


def test_what_a_clean_stop_leaves_is_drained_by_the_next_start(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    with down(tmp_path):
        for index in range(5):
            asyncio.run(log.append(Topic.TURNS, ended(index)))
        log.close()
    again = open_log(tmp_path)
    wait_for(lambda: again.state == "ok")
    asyncio.run(again.append(Topic.TURNS, ended(5)))
    assert sessions(again) == [str(index) for index in range(6)]
    again.close()


KILLED = r"""
import asyncio, os, sys
from datetime import UTC, datetime
from pathlib import Path
from core.events import SessionEnded, Topic
from core.ports import TopicPartition
from core.codec import encode
from ingest.spool.spool import SpoolingLog
from ingest.sqlite.log import SqliteEventLog

async def run(log, name):
    index = 0
    while True:
        event = SessionEnded(session_id=f"{name}-{index}", namespace="n", received_at=datetime.now(UTC))
        await log.append(Topic.TURNS, event)
        os.write(1, f"{name}-{index}\n".encode())
        index += 1

async def main():
    directory = Path(sys.argv[1])
    inner = SqliteEventLog(directory / "log.db", 2, 0.01, busy_timeout_s=0.02)
    log = SpoolingLog(inner, directory / "spool", 1 << 30)
    await asyncio.gather(*(run(log, name) for name in range(4)))

asyncio.run(main())
"""


@pytest.mark.parametrize("acknowledged", [3, 200])
def test_kill_9_while_spooling_loses_nothing_acknowledged(tmp_path: Path, acknowledged: int) -> None:
    SqliteEventLog(tmp_path / "log.db", 2, 0.01).close()
    with down(tmp_path):
        process = subprocess.Popen([sys.executable, "-c", KILLED, tmp_path], stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        seen = [process.stdout.readline().strip() for _ in range(acknowledged)]
        process.kill()
        seen += process.stdout.read().split("\n")[:-1]
        process.communicate()
    log = open_log(tmp_path)
    wait_for(lambda: log.depth_records == 0)
    found = sessions(log)
    log.close()
    assert len(found) == len(set(found)), "the log was down: nothing of the spool had reached it"
    assert set(seen) <= set(found)
    assert len(found) - len(seen) <= 8


def test_a_torn_tail_is_left_out_counted_and_kept(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    with down(tmp_path):
        for index in range(5):
            asyncio.run(log.append(Topic.TURNS, ended(index)))
        log.close()
    segment = max((tmp_path / "spool").iterdir())
    content = segment.read_bytes()
    segment.write_bytes(content[:-3])
    before = telemetry.SPOOL_TORN_BYTES._value.get()
    again = open_log(tmp_path)
    wait_for(lambda: again.state == "ok")
    assert sessions(again) == [str(index) for index in range(4)]
    assert telemetry.SPOOL_TORN_BYTES._value.get() - before == FRAME_BYTES - 3
    assert [path.suffix for path in (tmp_path / "spool").iterdir()] == [".torn"]
    again.close()


def test_frames_are_checked_byte_by_byte(tmp_path: Path) -> None:
    files = SegmentFiles(tmp_path, 1 << 20)
    files.append([b"one", b"", b"three"])
    files.seal()
    (path,) = files.sealed()
    assert read_segment(path).payloads == (b"one", b"", b"three")
    content = path.read_bytes()
    for position in range(len(content)):
        path.write_bytes(content[:position] + bytes([content[position] ^ 1]) + content[position + 1 :])
        segment = read_segment(path)
        assert len(segment.payloads) < 3
        assert segment.torn_bytes > 0


FULL_DISK = r"""
import resource, sys
from pathlib import Path
from ingest.spool.files import SegmentFiles

files = SegmentFiles(Path(sys.argv[1]), 1 << 20)
files.append([b"a" * 1000])
hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
resource.setrlimit(resource.RLIMIT_FSIZE, (2500, hard))
try:
    files.append([b"b" * 1000, b"c" * 1000])
    print("taken")
except OSError as error:
    print("refused")
resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
files.append([b"d" * 1000])
files.seal()
"""


def test_a_batch_that_does_not_fit_the_disk_leaves_no_trace(tmp_path: Path) -> None:
    run = subprocess.run([sys.executable, "-c", FULL_DISK, tmp_path], capture_output=True, text=True, check=True)
    assert run.stdout == "refused\n"
    segments = [read_segment(path) for path in SegmentFiles(tmp_path, 1).sealed()]
    assert [payload[:1] for segment in segments for payload in segment.payloads] == [b"a", b"d"]
    assert all(segment.torn_bytes == 0 for segment in segments)


def test_segments_are_bounded_in_size(tmp_path: Path) -> None:
    files = SegmentFiles(tmp_path, 100)
    for _ in range(10):
        files.append([msgspec.msgpack.encode("x" * 40)])
    files.seal()
    assert [len(read_segment(path).payloads) for path in files.sealed()] == [2] * 5  # sealed once past the bound
