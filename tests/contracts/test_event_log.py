"""The contract of every event log, run over each adapter."""

import asyncio
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import product
from pathlib import Path
from typing import Any

import made_events
import pytest
from kafka_world import PARTITIONS, open_log, read, topics_of_our_own
from made_events import ended
from services import require_services
from waiting import wait_for

from core import telemetry
from core.errors import Conflict, Fenced, GroupBusy, LogUnavailable, StoreUnavailable
from core.events import Event, Release, SessionEnded, Topic
from core.ids import base_ref, new_session_id
from core.ports import Consumer, EventLog, LogReader, Position, Record, TopicPartition
from ingest.spool.spool import SpoolingLog
from ingest.sqlite.log import SqliteEventLog

NOW = datetime(2026, 3, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Adapter:
    """A kind of log: how to open it (again), and its capabilities."""

    open: Callable[[Path], EventLog]
    rebalances: bool = False  # several members of a group share its partitions
    orders_all: bool = True  # records come in the order of their appending over all partitions, not within each alone


def sqlite(path: Path) -> EventLog:
    return SqliteEventLog(path / "log.db", PARTITIONS, 0.01)


def spooling(path: Path) -> EventLog:
    return SpoolingLog(sqlite(path), path / "spool", 1 << 20)


@pytest.fixture(params=["sqlite", "spooling-sqlite", "kafka"])
def adapter(request: pytest.FixtureRequest) -> Iterator[Adapter]:
    match request.param:
        case "sqlite":
            yield Adapter(sqlite)
        case "spooling-sqlite":
            yield Adapter(spooling)
        case "kafka":
            with topics_of_our_own(require_services().kafka) as settings:
                yield Adapter(lambda _: open_log(settings), rebalances=True, orders_all=False)


@pytest.fixture
def log(adapter: Adapter, tmp_path: Path) -> Iterator[EventLog]:
    log = adapter.open(tmp_path)
    yield log
    log.close()


@pytest.fixture
def join(log: EventLog) -> Iterator[Callable[..., Consumer]]:
    """Yield a function that makes consumers, which are closed at the end."""
    members: list[Consumer] = []

    def join(group: str = "group", *topics: Topic, of: EventLog = log, listener: object = None) -> Consumer:
        members.append(of.consumer(group, topics or (Topic.TURNS,), listener))
        return members[-1]

    yield join
    for member in members:
        member.close()


def events(count: int) -> list[Event]:
    return [ended(f"session-{index}") for index in range(count)]


def in_order(records: Sequence[Record | Position], adapter: Adapter) -> list[Any]:
    """Return the records in the order that the log promises, which may hold within each partition only."""
    if adapter.orders_all:
        return list(records)
    return sorted(records, key=lambda record: (record.topic, record.partition))  # stable


def read_all(log: EventLog, reader: LogReader, max_records: int = 7) -> list[Record]:
    """Read to the log's end."""
    records: list[Record] = []
    deadline = time.monotonic() + 120.0
    while not at_end(log, reader):
        assert time.monotonic() < deadline, f"only {len(records)} records"
        batch = reader.poll(max_records, 0.2)
        assert len(batch) <= max_records
        records += batch
    return records


def at_end(log: EventLog, reader: LogReader) -> bool:
    sources = reader.assignment()
    return bool(sources) and all(reader.position(source) == log.end(source) for source in sources)


def test_what_is_appended_is_read_back_whole_and_in_order(
    log: EventLog, join: Callable[..., Consumer], adapter: Adapter
) -> None:
    written = events(50)
    before = datetime.now(UTC)
    positions = log.append_blocking(Topic.TURNS, written)
    records = read_all(log, join())
    placed = dict(zip(((p.partition, p.offset) for p in positions), written, strict=True))
    assert {(r.partition, r.offset): r.event for r in records} == placed
    assert [(r.partition, r.offset) for r in in_order(records, adapter)] == [
        (p.partition, p.offset) for p in in_order(positions, adapter)
    ]
    assert all(record.error is None for record in records)
    assert sum(position.size for position in positions) == sum(len(record.raw) for record in records)
    assert all(abs(record.appended_at - before) < timedelta(minutes=1) for record in records)


def test_offsets_count_from_zero_in_each_partition_and_topic(log: EventLog) -> None:
    positions = log.append_blocking(Topic.TURNS, events(40)) + log.append_blocking(Topic.REWARDS, events(40))
    for topic in (Topic.TURNS, Topic.REWARDS):
        for partition in range(PARTITIONS):
            offsets = [p.offset for p in positions if (p.topic, p.partition) == (topic, partition)]
            assert offsets == list(range(len(offsets)))
            assert offsets, "40 sessions reach every partition"
            assert log.end(TopicPartition(topic, partition)) == len(offsets)
            assert log.earliest(TopicPartition(topic, partition)) == 0
    assert log.partitions(Topic.TURNS) == PARTITIONS


def test_an_outcome_that_names_only_the_inference_reaches_its_sessions_partition(log: EventLog) -> None:
    for _ in range(20):
        session = new_session_id()
        outcome = made_events.outcome(made_events.completion(session))
        first, second = log.append_blocking(Topic.TURNS, [ended(session), outcome])
        assert first.partition == second.partition


def test_releases_are_partitioned_by_version(log: EventLog) -> None:
    def release(version: int) -> Release:
        return Release(version=base_ref(version), cluster="c", state="live", why="", by="gate", at=NOW)

    positions = log.append_blocking(Topic.RELEASES, [release(version) for version in range(2 * PARTITIONS)])
    partitions = log.partitions(Topic.RELEASES)
    assert [position.partition for position in positions] == [v % partitions for v in range(2 * PARTITIONS)]


def test_concurrent_appends_are_all_there_once(log: EventLog, join: Callable[..., Consumer]) -> None:
    async def appender(name: int) -> None:
        for index in range(20):
            await log.append(Topic.TURNS, ended(f"{name}-{index}"))

    async def main() -> None:
        await asyncio.gather(*(appender(name) for name in range(16)))

    asyncio.run(main())
    records = read_all(log, join())
    sessions = [record.event.session_id for record in records if isinstance(record.event, SessionEnded)]
    assert sorted(sessions) == sorted(f"{name}-{index}" for name in range(16) for index in range(20))
    for name, partition in product(range(16), range(PARTITIONS)):  # one appender's of one partition keep their order
        mine = [r.event.session_id for r in records if r.partition == partition]
        mine = [int(session.split("-")[1]) for session in mine if session.startswith(f"{name}-")]
        assert mine == sorted(mine)


def test_giving_up_the_wait_does_not_lose_the_append(log: EventLog, join: Callable[..., Consumer]) -> None:
    async def main() -> None:
        task = asyncio.ensure_future(log.append(Topic.TURNS, ended("given up")))
        await asyncio.sleep(0)  # it is on its way
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await log.append(Topic.TURNS, ended("waited for"))

    asyncio.run(main())
    assert {record.event.session_id for record in read(join(), 2)} == {"given up", "waited for"}


def test_two_readings_yield_the_same_order(log: EventLog, join: Callable[..., Consumer], adapter: Adapter) -> None:
    for start in range(0, 60, 5):
        log.append_blocking(Topic.TURNS, [ended(f"s{index}") for index in range(start, start + 5)])
        log.append_blocking(Topic.REWARDS, [ended(f"r{start}")])
    by_ones = read_all(log, join("one", Topic.TURNS, Topic.REWARDS), 1)
    by_many = read_all(log, join("many", Topic.REWARDS, Topic.TURNS), 1000)
    assert in_order(by_ones, adapter) == in_order(by_many, adapter)
    assert len(by_ones) == 72


def test_a_group_goes_on_where_it_committed(adapter: Adapter, log: EventLog, tmp_path: Path) -> None:
    positions = log.append_blocking(Topic.TURNS, events(30))
    member = log.consumer("group", [Topic.TURNS])
    first = read(member, 10)
    done = {source: member.position(source) for source in member.assignment()}
    member.commit(done)
    read(member, 5)  # but not done
    member.close()
    log.close()

    again = adapter.open(tmp_path)
    member = again.consumer("group", [Topic.TURNS])
    assert {source: member.committed(source) for source in done} == done
    rest = read_all(again, member)
    member.close()
    again.close()
    assert sorted((r.partition, r.offset) for r in first + rest) == sorted((p.partition, p.offset) for p in positions)
    assert [r.event for r in first + rest] == events(30) or not adapter.orders_all


def test_nothing_is_committed_before_the_first_commit(log: EventLog, join: Callable[..., Consumer]) -> None:
    log.append_blocking(Topic.TURNS, events(3))
    member = join()
    read_all(log, member)
    assert all(member.committed(source) is None for source in member.assignment())


def test_groups_do_not_disturb_each_other(log: EventLog, join: Callable[..., Consumer]) -> None:
    log.append_blocking(Topic.TURNS, events(10))
    one, other = join("one"), join("other")
    assert len(read_all(log, one)) == 10
    one.commit({source: one.position(source) for source in one.assignment()})
    assert len(read_all(log, other)) == 10


def test_seek_goes_back_and_forth(log: EventLog, join: Callable[..., Consumer]) -> None:
    log.append_blocking(Topic.TURNS, events(40))
    member = join()
    everything = read_all(log, member)
    source = everything[0].source
    mine = [record for record in everything if record.source == source]
    member.seek(source, 2)
    assert member.position(source) == 2
    assert read_all(log, member) == mine[2:]
    member.seek(source, 1)
    member.seek(source, log.end(source))
    assert member.poll(10, 0.3) == []
    member.seek(source, log.earliest(source))
    assert read_all(log, member) == mine


def test_poll_waits_no_longer_than_asked(log: EventLog, join: Callable[..., Consumer]) -> None:
    member = join()
    wait_for(lambda: member.poll(10, 0.0) == [] and member.assignment())
    found: list[list[Record]] = []
    start = time.monotonic()
    asking = threading.Thread(target=lambda: found.append(member.poll(10, 0.05)), daemon=True)
    asking.start()
    asking.join(120.0)  # of one that waits until there is something
    assert found == [[]]
    assert time.monotonic() - start >= 0.05


def test_poll_returns_what_arrives_while_it_waits(log: EventLog, join: Callable[..., Consumer]) -> None:
    member = join()
    got: list[Record] = []
    reader = threading.Thread(target=lambda: got.extend(member.poll(10, 240.0)))
    reader.start()
    log.append_blocking(Topic.TURNS, events(1))
    reader.join(120.0)
    assert not reader.is_alive()
    assert [record.event for record in got] == events(1)


def test_only_the_topics_asked_for_are_read(log: EventLog, join: Callable[..., Consumer]) -> None:
    log.append_blocking(Topic.REWARDS, events(3))
    log.append_blocking(Topic.TURNS, events(2))
    member = join("group", Topic.TURNS)
    assert len(read_all(log, member)) == 2
    assert {source.topic for source in member.assignment()} == {Topic.TURNS}


def test_readers_of_all_partitions_do_not_disturb_each_other_nor_groups(
    log: EventLog, join: Callable[..., Consumer]
) -> None:
    written = events(30)
    log.append_blocking(Topic.TURNS, written)
    member, one, other = join(), log.reader([Topic.TURNS]), log.reader([Topic.TURNS])
    try:
        assert len(one.assignment()) == PARTITIONS
        for reading in (one, member, other):
            assert sorted(record.event.session_id for record in read_all(log, reading)) == sorted(
                event.session_id for event in written
            )
        assert all(one.position(source) == log.end(source) for source in one.assignment())
        log.append_blocking(Topic.TURNS, [ended("later")])
        assert [record.event for record in read_all(log, one)] == [ended("later")]
    finally:
        one.close()
        one.close()
        other.close()


def test_a_reader_starts_where_it_is_told(log: EventLog) -> None:
    log.append_blocking(Topic.TURNS, events(30))
    reader = log.reader([Topic.TURNS])
    try:
        source = min(reader.assignment())
        assert reader.position(source) == log.earliest(source) == 0
        reader.seek(source, 2)
        assert reader.position(source) == 2
        assert next(record.offset for record in read_all(log, reader) if record.source == source) == 2
    finally:
        reader.close()


class Listener:
    def __init__(self) -> None:
        self.calls: list[tuple[str, frozenset[TopicPartition]]] = []

    def on_assigned(self, partitions: frozenset[TopicPartition]) -> None:
        self.calls.append(("assigned", partitions))

    def on_revoked(self, partitions: frozenset[TopicPartition]) -> None:
        self.calls.append(("revoked", partitions))

    def on_lost(self, partitions: frozenset[TopicPartition]) -> None:
        self.calls.append(("lost", partitions))


def test_the_listener_hears_of_every_partition(log: EventLog) -> None:
    listener = Listener()
    member = log.consumer("group", [Topic.TURNS], listener)
    wait_for(lambda: member.poll(10, 0.2) or listener.calls)
    every = frozenset(TopicPartition(Topic.TURNS, index) for index in range(PARTITIONS))
    assert listener.calls == [("assigned", every)]
    member.close()
    assert listener.calls == [("assigned", every), ("revoked", every)]


def test_a_listener_decides_where_reading_begins(log: EventLog) -> None:
    """The listener is called before any record and may seek, ask and commit; if it fails, it is called again."""
    log.append_blocking(Topic.TURNS, events(40))
    calls: list[frozenset[TopicPartition]] = []

    class Seeking(Listener):
        def on_assigned(self, partitions: frozenset[TopicPartition]) -> None:
            calls.append(partitions)
            if len(calls) == 1:
                raise StoreUnavailable("not yet")
            assert all(member.position(source) == 0 and member.committed(source) is None for source in partitions)
            member.commit(dict.fromkeys(partitions, 1))
            for source in partitions:
                member.seek(source, 2)

    member = log.consumer("group", [Topic.TURNS], Seeking())
    with pytest.raises(StoreUnavailable):
        wait_for(lambda: member.poll(10, 0.2))
    records = read_all(log, member)
    assert len(calls) == 2
    assert all(member.committed(source) == 1 for source in member.assignment())
    assert {
        record.source: min(r.offset for r in records if r.source == record.source) for record in records
    } == dict.fromkeys(member.assignment(), 2)
    assert len(records) == sum(log.end(source) - 2 for source in member.assignment())
    member.close()


def test_what_is_not_owned_cannot_be_committed(log: EventLog, join: Callable[..., Consumer]) -> None:
    log.append_blocking(Topic.TURNS, events(10))
    member = join()
    read_all(log, member)
    with pytest.raises(Fenced, match="group"):
        member.commit({TopicPartition(Topic.REWARDS, 0): 1})
    assert all(member.committed(source) is None for source in member.assignment())


def share(one: Consumer, other: Consumer) -> bool:
    """Let both take part; return whether each partition is one's and not the other's."""
    one.poll(1, 0.2)
    other.poll(1, 0.2)
    mine, theirs = one.assignment(), other.assignment()
    return bool(mine and theirs) and mine.isdisjoint(theirs) and len(mine | theirs) == PARTITIONS


def test_a_second_member_is_refused_or_shares(adapter: Adapter, log: EventLog, join: Callable[..., Consumer]) -> None:
    log.append_blocking(Topic.TURNS, events(1))
    member = join()
    if adapter.rebalances:
        other = join()
        wait_for(lambda: share(member, other))  # one may hear of it before the other
        return
    with pytest.raises(GroupBusy, match="group"):
        join()
    assert len(member.poll(10, 0.0)) == 1, "the first member works on"
    member.commit({source: member.position(source) for source in member.assignment()})
    member.close()
    join()


def test_a_member_that_lost_its_partitions_cannot_commit(
    adapter: Adapter, log: EventLog, join: Callable[..., Consumer], tmp_path: Path
) -> None:
    if adapter.rebalances:
        pytest.skip("made to happen in tests/ingest/kafka/test_kafka_log.py")
    log.append_blocking(Topic.TURNS, events(1))
    old = join()
    record = old.poll(1, 0.0)[0]
    (tmp_path / "log.db-groups" / "group.lock").unlink()  # what the lock prevents: a second member all the same
    new = join()
    new.commit({record.source: 0})
    with pytest.raises(Fenced, match="group"):
        old.commit({record.source: record.offset + 1})
    assert new.committed(record.source) == 0


def test_closing_twice_is_harmless_and_appends_after_it_are_refused(adapter: Adapter, tmp_path: Path) -> None:
    log = adapter.open(tmp_path)
    log.append_blocking(Topic.TURNS, events(1))
    log.close()
    log.close()
    with pytest.raises(LogUnavailable, match="closed"):
        log.append_blocking(Topic.TURNS, events(1))


# ------------------------------------------------------------------------------------------ deleting


def sources(log: EventLog) -> list[TopicPartition]:
    return [TopicPartition(Topic.TURNS, index) for index in range(log.partitions(Topic.TURNS))]


def test_what_is_deleted_is_gone_and_nothing_else(log: EventLog, adapter: Adapter) -> None:
    log.append_blocking(Topic.TURNS, events(60))
    log.append_blocking(Topic.REWARDS, events(60))
    reader = log.reader([Topic.TURNS, Topic.REWARDS])
    everything = read_all(log, reader)
    reader.close()
    ends = {source: log.end(source) for source in sources(log)}
    cut = {source: end // 2 for source, end in ends.items()}
    for _ in range(2):
        for source in cut:
            log.delete_before(source, cut[source])
    assert {source: log.earliest(source) for source in cut} == cut
    assert {source: log.end(source) for source in cut} == ends
    assert all(log.earliest(TopicPartition(Topic.REWARDS, index)) == 0 for index in range(PARTITIONS))
    reader = log.reader([Topic.TURNS, Topic.REWARDS])
    left = read_all(log, reader)
    reader.close()
    expected = [record for record in everything if record.offset >= cut.get(record.source, 0)]
    assert in_order(left, adapter) == in_order(expected, adapter)


def test_deleting_less_than_is_gone_already_changes_nothing(log: EventLog) -> None:
    log.append_blocking(Topic.TURNS, events(40))
    source = sources(log)[0]
    log.delete_before(source, 5)
    log.delete_before(source, 2)
    assert log.earliest(source) == 5


def test_offsets_go_on_where_all_was_deleted(log: EventLog) -> None:
    positions = log.append_blocking(Topic.TURNS, events(40))
    for source in sources(log):
        end = log.end(source)
        log.delete_before(source, end)
        assert end - 1 <= log.earliest(source) <= end, "the latest may stay"
        assert log.end(source) == end
    for first, again in zip(positions, log.append_blocking(Topic.TURNS, events(40)), strict=True):
        assert again.partition == first.partition
        assert again.offset == first.offset + sum(1 for p in positions if p.partition == first.partition)


def test_a_reader_that_was_overtaken_goes_on_with_the_earliest_left_and_counts(log: EventLog) -> None:
    log.append_blocking(Topic.TURNS, events(60))
    source = sources(log)[1]
    reader = log.reader([Topic.TURNS])
    assert reader.position(source) == 0
    log.delete_before(source, 7)
    counted = skipped(), resets()
    records = [record for record in read_all(log, reader) if record.source == source]
    reader.close()
    assert [record.offset for record in records] == list(range(7, log.end(source)))
    assert (skipped(), resets()) == (counted[0] + 7, counted[1] + 1)


def skipped() -> float:
    return telemetry.LOG_SKIPPED.labels(topic=Topic.TURNS)._value.get()


def resets() -> float:
    return telemetry.LOG_RESETS.labels(topic=Topic.TURNS)._value.get()


def test_moments_are_found(log: EventLog) -> None:
    before = datetime.now(UTC) - timedelta(seconds=1)
    first = log.append_blocking(Topic.TURNS, [ended("one")] * 3)
    source = TopicPartition(Topic.TURNS, first[0].partition)
    reader = log.reader([Topic.TURNS])
    last_at = max(record.appended_at for record in read(reader, 3))
    wait_for(lambda: datetime.now(UTC) > last_at + timedelta(milliseconds=5))
    between = datetime.now(UTC)
    wait_for(lambda: datetime.now(UTC) > between + timedelta(milliseconds=5))
    log.append_blocking(Topic.TURNS, [ended("one")] * 2)
    reader.close()
    assert log.offset_at(source, before) == 0
    assert log.offset_at(source, last_at) <= 2, "inclusive"
    assert log.offset_at(source, between) == 3
    assert log.offset_at(source, datetime.now(UTC) + timedelta(minutes=1)) == log.end(source) == 5
    log.delete_before(source, 2)
    assert log.offset_at(source, before) == 2
    empty = next(other for other in sources(log) if other != source)
    assert log.offset_at(empty, before) == 0


def test_anybody_may_ask_how_far_a_group_has_come(log: EventLog, join: Callable[..., Consumer]) -> None:
    log.append_blocking(Topic.TURNS, events(40))
    member, source = join("group"), sources(log)[0]
    assert log.committed("group", source) is None
    read_all(log, member)
    member.commit({source: 3})
    assert log.committed("group", source) == 3
    assert log.committed("group", sources(log)[1]) is None
    assert log.committed("another", source) is None


# ------------------------------------------------------------------------------------------ restoring


@pytest.fixture
def other(adapter: Adapter, tmp_path: Path) -> Iterator[EventLog]:
    """Yield another log of the kind, which is empty."""
    with ExitStack() as held:
        if adapter.rebalances:
            log: EventLog = open_log(held.enter_context(topics_of_our_own(require_services().kafka)))
        else:
            (tmp_path / "other").mkdir()
            log = adapter.open(tmp_path / "other")
        held.callback(log.close)
        yield log


def test_a_backups_records_come_back_at_their_own_offsets(log: EventLog, other: EventLog, adapter: Adapter) -> None:
    """Also where the beginning was deleted; what comes later goes on counting."""
    log.append_blocking(Topic.TURNS, events(60))
    kept = [record for record in read_to_the_end(log, Topic.TURNS) if record.offset >= 2]
    ends = {record.source: record.offset + 1 for record in kept}
    other.restore(kept[:30])
    other.restore(kept[30:])
    assert {source: other.end(source) for source in ends} == ends
    assert {other.earliest(source) for source in ends} == {2}
    found = [record for record in read_to_the_end(other, Topic.TURNS) if record.offset >= 2]
    assert [placed(r) for r in in_order(found, adapter)] == [placed(r) for r in in_order(kept, adapter)]
    with pytest.raises(Conflict, match="already"):
        other.restore(kept[:1])
    (position,) = other.append_blocking(Topic.TURNS, events(1))
    assert position.offset == ends[TopicPartition(position.topic, position.partition)]


def test_what_compaction_left_comes_back_at_its_own_offsets(log: EventLog, other: EventLog) -> None:
    log.append_blocking(Topic.RELEASES, [release(str(number)) for number in range(6)])
    kept = [record for record in read_to_the_end(log, Topic.RELEASES) if record.offset in (2, 5)]
    other.restore(kept)
    (source,) = {record.source for record in kept}
    assert other.end(source) == 6
    found = {record.offset: record.raw for record in read_to_the_end(other, Topic.RELEASES)}
    assert {record.offset: record.raw for record in kept}.items() <= found.items()
    assert set(found.values()) == {record.raw for record in kept}, "gaps say the same as what is after them"


def test_where_all_was_deleted_the_next_record_has_the_next_offset(log: EventLog) -> None:
    (position,) = log.append_blocking(Topic.TURNS, [ended("one")])
    source = TopicPartition(Topic.TURNS, position.partition)
    for offset in (1, 0, 7, 7):
        log.skip_to(source, offset)
    assert log.end(source) == 7
    (later,) = log.append_blocking(Topic.TURNS, [ended("one")])
    assert (later.partition, later.offset) == (position.partition, 7)
    assert [record.event for record in read_to_the_end(log, Topic.TURNS) if record.offset == 7] == [ended("one")]


def release(why: str) -> Release:
    return Release(version=base_ref(1), cluster="local", state="live", why=why, by="gate", at=NOW)


def placed(record: Record) -> tuple[int, int, bytes]:
    return record.partition, record.offset, record.raw


def read_to_the_end(log: EventLog, topic: Topic) -> list[Record]:
    reader = log.reader([topic])
    try:
        return read_all(log, reader)
    finally:
        reader.close()
