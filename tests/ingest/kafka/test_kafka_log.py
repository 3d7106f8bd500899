"""Behaviour of the log that only Kafka has.

Consumer groups, members that are left behind, records that do not decode, and brokers that hang."""

import asyncio
import logging
import os
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest
from changed_settings import changed
from kafka import KafkaProducer
from kafka import TopicPartition as KafkaPartition
from kafka_world import PARTITIONS, admin_of, open_log, read, topics_of_our_own
from made_events import ended
from services import require_broker, require_services
from waiting import wait_for

from core import telemetry
from core.codec import SCHEMA_VERSION, encode
from core.errors import Fenced, LogUnavailable, NewerSchema, TooLarge
from core.events import Event, Outcome, Topic
from core.ids import Namespace, OutcomeId, SessionId
from core.ports import Consumer, Record, TopicPartition
from core.settings import KafkaSettings
from ingest.kafka.clients import topic_name
from ingest.kafka.log import KafkaEventLog

NOW = datetime(2026, 3, 1, tzinfo=UTC)
EVERY = frozenset(TopicPartition(Topic.TURNS, index) for index in range(PARTITIONS))


@pytest.fixture
def settings() -> Iterator[KafkaSettings]:
    # Tests of what comes too late say after how long: nothing else does, however long the machine stands still.
    with topics_of_our_own(
        require_services().kafka, client={"session_timeout_s": 60.0, "delivery_timeout_s": 60.0}
    ) as made:
        yield made


@pytest.fixture
def log(settings: KafkaSettings) -> Iterator[KafkaEventLog]:
    log = open_log(settings)
    yield log
    log.close()


def comment(text: str) -> Outcome:
    return Outcome(
        outcome_id=OutcomeId("o"),
        inference_id=None,
        session_id=SessionId("s"),
        namespace=Namespace("n"),
        name="comment",
        value=text,
        observed_at=NOW,
        received_at=NOW,
    )


def append_raw(settings: KafkaSettings, partition: int, *raws: bytes) -> None:
    producer = KafkaProducer(bootstrap_servers=list(settings.bootstrap_servers))
    for raw in raws:
        producer.send(topic_name(settings, Topic.TURNS), raw, partition=partition).get(30.0)
    producer.close()


class Listener:
    def __init__(self) -> None:
        self.calls: list[tuple[str, frozenset[TopicPartition]]] = []
        self.member: Consumer | None = None
        self.on_revoked_do: Callable[[frozenset[TopicPartition]], object] = lambda _: None

    def on_assigned(self, partitions: frozenset[TopicPartition]) -> None:
        self.calls.append(("assigned", partitions))

    def on_revoked(self, partitions: frozenset[TopicPartition]) -> None:
        self.calls.append(("revoked", partitions))
        self.on_revoked_do(partitions)

    def on_lost(self, partitions: frozenset[TopicPartition]) -> None:
        self.calls.append(("lost", partitions))


# ----------------------------------------------------------------------------------------------- groups


class Worker:
    """A group member in a thread, which commits what it reads."""

    def __init__(self, log: KafkaEventLog, name: str) -> None:
        self.read: list[Record] = []
        self.owned: frozenset[TopicPartition] = frozenset()
        self.member = log.consumer("group", [Topic.TURNS], Listener())
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name)
        self._thread.start()

    def _run(self) -> None:
        while not self._stopping.is_set():
            records = self.member.poll(5, 0.1)
            self.owned = self.member.assignment()
            if records:
                self.read += records
                self.member.commit({source: self.member.position(source) for source in self.owned})
        self.member.close()

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join()


def test_members_that_come_and_go_read_every_record_once(log: KafkaEventLog) -> None:
    written = 0

    def write(count: int) -> None:
        nonlocal written
        log.append_blocking(Topic.TURNS, [ended(f"session-{written + index}") for index in range(count)])
        written += count

    first = Worker(log, "first")
    workers = [first]
    try:
        write(200)
        wait_for(lambda: first.read)
        second = Worker(log, "second")
        workers.append(second)
        wait_for(lambda: write(20) or second.owned)
        write(200)
        wait_for(lambda: len(second.read) > 50)
        wait_for(lambda: first.owned | second.owned == EVERY)
        workers.remove(second)
        second.stop()
        wait_for(lambda: write(20) or first.owned == EVERY)
        wait_for(lambda: len(first.read) + len(second.read) >= written)
    finally:
        for worker in workers:
            worker.stop()
    places = [(record.partition, record.offset) for record in first.read + second.read]
    assert len(set(places)) == len(places) == written


class Keeper(Listener):
    """A member that keeps its own positions beside its results, and seeks to them at every rebalance."""

    def __init__(self, log: KafkaEventLog, kept: dict[TopicPartition, int]) -> None:
        super().__init__()
        self.wrong: list[str] = []
        self.owned: frozenset[TopicPartition] = frozenset()
        self.member = log.consumer("group", [Topic.TURNS], self)
        self._kept = kept
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def on_assigned(self, partitions: frozenset[TopicPartition]) -> None:
        super().on_assigned(partitions)
        assert self.member is not None
        for source in self.member.assignment():
            self.member.seek(source, self._kept.get(source, 0))

    def _run(self) -> None:
        assert self.member is not None
        while not self._stopping.is_set():
            for record in self.member.poll(50, 0.05):
                if record.offset != self._kept.get(record.source, 0):
                    self.wrong.append(f"{record.source} {record.offset}, not {self._kept.get(record.source, 0)}")
                self._kept[record.source] = record.offset + 1
            self.owned = self.member.assignment()
        self.member.close()

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join()


def test_who_goes_back_at_a_change_reads_nothing_twice(log: KafkaEventLog) -> None:
    kept: dict[TopicPartition, int] = {}
    writing = threading.Event()

    def write() -> None:
        number = 0
        while not writing.is_set():
            log.append_blocking(Topic.TURNS, [ended(f"session-{number + index}") for index in range(20)])
            number += 20

    writer = threading.Thread(target=write)
    first = Keeper(log, kept)
    writer.start()
    try:
        for _ in range(3):
            wait_for(lambda: first.owned == EVERY)
            second = Keeper(log, kept)
            wait_for(lambda: second.owned)  # noqa: B023
            second.stop()
            assert not second.wrong
        writing.set()
        writer.join()
        wait_for(lambda: all(kept.get(source, 0) == log.end(source) for source in EVERY))
    finally:
        writing.set()
        writer.join()
        first.stop()
    assert not first.wrong


def test_what_is_revoked_can_be_committed_before_another_has_it(log: KafkaEventLog) -> None:
    """Offsets are committed only on revocation, and the next owner continues from them."""
    log.append_blocking(Topic.TURNS, [ended(f"session-{index}") for index in range(40)])
    listener = Listener()
    member = log.consumer("group", [Topic.TURNS], listener)
    listener.on_revoked_do = lambda gone: member.commit({source: member.position(source) for source in gone})
    assert len(read(member, 40)) == 40
    other = log.consumer("group", [Topic.TURNS])
    try:
        wait_for(lambda: member.poll(5, 0.1) or other.poll(5, 0.1) or other.assignment())
        assert [kind for kind, _ in listener.calls] == ["assigned", "revoked"]
        moved = listener.calls[1][1]
        assert other.assignment() == moved
        assert all(other.position(source) == log.end(source) for source in moved)
        assert other.poll(10, 0.5) == []
    finally:
        other.close()
        member.close()


def test_a_member_that_stayed_away_too_long_cannot_commit(settings: KafkaSettings, log: KafkaEventLog) -> None:
    log.append_blocking(Topic.TURNS, [ended(f"session-{index}") for index in range(40)])
    hasty = changed(settings, {"client.max_poll_interval_s": 4.0})
    other_log = open_log(hasty)
    listener = Listener()
    zombie = other_log.consumer("group", [Topic.TURNS], listener)
    done = read(zombie, 40)
    heir = log.consumer("group", [Topic.TURNS])
    try:
        assert len(read(heir, 40)) == 40  # what was never committed
        heir.commit({source: heir.position(source) for source in heir.assignment()})
        with pytest.raises(Fenced, match="group"):
            zombie.commit({record.source: record.offset + 1 for record in done[:5]})
        told = len(listener.calls)  # more than once where the machine stood still while it read, and it came back
        assert listener.calls[-1] == ("assigned", EVERY)
        zombie.poll(1, 0.1)
        assert listener.calls[told] == ("lost", EVERY)
        assert zombie.assignment().isdisjoint(heir.assignment())
    finally:
        heir.close()
        zombie.close()
        other_log.close()


FROZEN = """
import sys
from core.errors import Fenced
from core.events import Topic
from core.settings import KafkaSettings
from ingest.kafka.log import KafkaEventLog
from kafka_world import open_log, read
log = open_log(KafkaSettings.model_validate_json(sys.argv[1]))
member = log.consumer("group", [Topic.TURNS])
records = read(member, 40)
print("read", flush=True)
sys.stdin.readline()
try:
    member.commit({record.source: 1 for record in records})
    print("committed", flush=True)
except Fenced as error:
    print("fenced", flush=True)
"""


def test_a_process_that_stood_still_cannot_commit(settings: KafkaSettings, log: KafkaEventLog) -> None:
    log.append_blocking(Topic.TURNS, [ended(f"session-{index}") for index in range(40)])
    helpers = str(Path(__file__).parents[2] / "contracts" / "parts")
    frozen = subprocess.Popen(
        [sys.executable, "-c", FROZEN, changed(settings, {"client.session_timeout_s": 3.0}).model_dump_json()],
        env={**os.environ, "PYTHONPATH": helpers},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    heir = log.consumer("group", [Topic.TURNS])
    try:
        assert frozen.stdout is not None
        assert frozen.stdout.readline() == "read\n"
        frozen.send_signal(signal.SIGSTOP)
        assert len(read(heir, 40)) == 40
        heir.commit({source: heir.position(source) for source in heir.assignment()})
        frozen.send_signal(signal.SIGCONT)
        assert frozen.communicate("commit\n", timeout=200.0)[0] == "fenced\n"
        assert all(heir.committed(source) == log.end(source) for source in heir.assignment())
    finally:
        frozen.kill()
        frozen.communicate()
        heir.close()


# ----------------------------------------------------------------------------------------------- records


def test_what_is_no_event_comes_raw(settings: KafkaSettings, log: KafkaEventLog) -> None:
    append_raw(settings, 0, encode(ended("before")), b"\xc1 poison", encode(ended("after")))
    reader = log.reader([Topic.TURNS])
    before, poison, after = read(reader, 3)
    assert (before.event, after.event) == (ended("before"), ended("after"))
    assert (poison.event, poison.raw, poison.offset) == (None, b"\xc1 poison", 1)
    assert poison.error
    reader.close()


def test_a_newer_record_is_not_passed(settings: KafkaSettings, log: KafkaEventLog) -> None:
    newer = msgspec.msgpack.encode((SCHEMA_VERSION + 1, {"type": "x"}))
    append_raw(settings, 0, encode(ended("before")), newer, encode(ended("after")))
    append_raw(settings, 1, encode(ended("elsewhere")))
    member = log.consumer("group", [Topic.TURNS])
    records: list[Record] = []
    for _ in range(3):
        with pytest.raises(NewerSchema, match=r"onward.turns:0 offset 1"):
            wait_for(lambda: records.extend(member.poll(10, 0.2)))
        assert member.position(TopicPartition(Topic.TURNS, 0)) == 1
    assert ended("after") not in [record.event for record in records]
    assert ended("before") in [record.event for record in records]
    member.seek(TopicPartition(Topic.TURNS, 0), 2)
    assert ended("after") in [r.event for r in read(member, 3 - len(records))]
    member.close()


def test_a_record_that_is_too_large_is_refused_before_it_is_sent(settings: KafkaSettings) -> None:
    limit = 1 << 16
    log = open_log(changed(settings, {"topics.max_record_bytes": limit}))
    around = len(encode(comment("x" * 60_000))) - 60_000
    fitting = comment("x" * (limit - around))
    assert len(encode(fitting)) == limit
    (position,) = log.append_blocking(Topic.TURNS, [fitting])
    with pytest.raises(TooLarge, match=r"kafka\.topics\.max_record_bytes is 65536"):
        log.append_blocking(Topic.TURNS, [ended("small"), comment("x" * (limit - around + 1))])
    assert sum(log.end(source) for source in EVERY) == 1
    assert position.offset == 0
    log.close()


def test_the_largest_record_is_taken(settings: KafkaSettings, log: KafkaEventLog) -> None:
    largest = comment("x" * (settings.topics.max_record_bytes - 1024))
    noise = comment(secrets.token_urlsafe(3 * (settings.topics.max_record_bytes - 1024) // 4))  # hardly compresses
    log.append_blocking(Topic.TURNS, [largest, noise])
    reader = log.reader([Topic.TURNS])
    assert [record.event for record in read(reader, 2)] == [largest, noise]
    reader.close()


# ----------------------------------------------------------------------------------------------- retention


def drop_before(settings: KafkaSettings, source: TopicPartition, offset: int) -> None:
    """Delete the records before `offset`, as retention does."""
    with admin_of(settings) as admin:
        admin.delete_records({KafkaPartition(topic_name(settings, source.topic), source.partition): offset})


def skipped() -> tuple[float, float]:
    counters = (telemetry.LOG_RESETS, telemetry.LOG_SKIPPED)
    resets, records = (one.labels(topic=Topic.TURNS)._value.get() for one in counters)
    return resets, records


def test_dropped_records_are_counted_and_said(
    settings: KafkaSettings, log: KafkaEventLog, caplog: pytest.LogCaptureFixture
) -> None:
    source = TopicPartition(Topic.TURNS, 0)
    append_raw(settings, 0, *(encode(ended(f"{index}")) for index in range(20)))
    member, reader = log.consumer("group", [Topic.TURNS]), log.reader([Topic.TURNS])
    read(member, 5, max_records=5)
    member.commit({source: 5})
    member.close()
    assert reader.position(source) == 0
    resets, records = skipped()

    drop_before(settings, source, 12)
    assert log.earliest(source) == 12
    member = log.consumer("group", [Topic.TURNS])
    with caplog.at_level(logging.ERROR, "ingest.kafka.reader"):
        assert read(member, 1)[0].offset == 12
        assert "onward.turns:0: offsets 5 to 11 were dropped" in caplog.text
        assert read(reader, 1)[0].offset == 12
    assert skipped() == (resets + 2, records + 7 + 12)
    member.close()
    reader.close()

    drop_before(settings, source, 20)  # all of it: positions move without a record
    reader = log.reader([Topic.TURNS])
    reader.seek(source, 13)
    wait_for(lambda: reader.poll(10, 0.1) or reader.position(source) == 20)
    assert skipped() == (resets + 3, records + 19 + 7)
    reader.close()


# ----------------------------------------------------------------------------------------------- the buffer


DELIVERY_S = 20.0  # whoever blocks does so for as long, and for longer than a busy machine stands still


def test_the_buffer_is_bounded_and_nothing_blocks_the_event_loop(tmp_path: Path) -> None:
    broker = require_broker(tmp_path / "kafka")
    try:
        with topics_of_our_own(
            [broker.address], client={"buffer_bytes": 1 << 20, "delivery_timeout_s": DELIVERY_S}
        ) as settings:
            log = open_log(settings)
            os.kill(broker.pid, signal.SIGSTOP)
            try:
                asyncio.run(fill(log))
            finally:
                os.kill(broker.pid, signal.SIGCONT)
            wait_for(lambda: appends(log, ended("again")))
            assert telemetry.LOG_BYTES_UNDER_WAY._value.get() == 0
            log.close()
    finally:
        broker.kill()


async def fill(log: KafkaEventLog) -> None:
    lags: list[float] = []
    ticking = asyncio.ensure_future(tick(lags))
    text = "x" * 100_000
    waiting = [asyncio.ensure_future(log.append(Topic.TURNS, comment(text))) for _ in range(10)]
    await asyncio.sleep(0)
    before = time.monotonic()
    with pytest.raises(LogUnavailable, match=r"kafka\.client\.buffer_bytes"):
        await log.append(Topic.TURNS, comment(text))
    assert time.monotonic() - before < DELIVERY_S / 2
    results = await asyncio.gather(*waiting, return_exceptions=True)
    assert time.monotonic() - before < 2 * DELIVERY_S
    assert all(isinstance(result, LogUnavailable) and "unknown" in str(result) for result in results), results
    ticking.cancel()
    assert max(lags) < DELIVERY_S / 2


async def tick(lags: list[float]) -> None:
    while True:
        before = time.monotonic()
        await asyncio.sleep(0.01)
        lags.append(time.monotonic() - before)


def appends(log: KafkaEventLog, event: Event) -> Any:
    try:
        return log.append_blocking(Topic.TURNS, [event])
    except LogUnavailable:
        return None
