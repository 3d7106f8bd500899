"""What every event log promises, run over each adapter."""

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import pytest

from core.errors import Fenced, GroupBusy, LogUnavailable
from core.events import Event, Outcome, Release, SessionEnded, Topic
from core.ids import Namespace, OutcomeId, SessionId, Version, new_inference_id, new_session_id
from core.ports import Consumer, EventLog, Reader, Record, TopicPartition
from ingest.spool import SpoolingLog
from ingest.sqlite_log import SqliteEventLog

PARTITIONS = 4
NOW = datetime(2026, 3, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Adapter:
    """How to open one kind of log (again), and what it can do."""

    open: Callable[[Path], EventLog]
    rebalances: bool  # several members of a group share its partitions


ADAPTERS = {
    "sqlite": Adapter(lambda path: SqliteEventLog(path / "log.db", PARTITIONS, 0.01), rebalances=False),
    "spooling-sqlite": Adapter(
        lambda path: SpoolingLog(SqliteEventLog(path / "log.db", PARTITIONS, 0.01), path / "spool", 1 << 20),
        rebalances=False,
    ),
}


@pytest.fixture(params=ADAPTERS)
def adapter(request: pytest.FixtureRequest) -> Adapter:
    return ADAPTERS[request.param]


@pytest.fixture
def log(adapter: Adapter, tmp_path: Path) -> Iterator[EventLog]:
    log = adapter.open(tmp_path)
    yield log
    log.close()


@pytest.fixture
def join(log: EventLog) -> Iterator[Callable[..., Consumer]]:
    """Consumers that are closed at the end."""
    members: list[Consumer] = []

    def join(group: str = "group", *topics: Topic, of: EventLog = log, listener: object = None) -> Consumer:
        members.append(of.consumer(group, topics or (Topic.TURNS,), listener))
        return members[-1]

    yield join
    for member in members:
        member.close()


def ended(session: str) -> SessionEnded:
    return SessionEnded(session_id=SessionId(session), namespace=Namespace("n"), received_at=NOW)


def events(count: int) -> list[Event]:
    return [ended(f"session-{index}") for index in range(count)]


def read_all(consumer: Reader, max_records: int = 7) -> list[Record]:
    records: list[Record] = []
    while batch := consumer.poll(max_records, 0.0):
        assert len(batch) <= max_records
        records += batch
    return records


def test_what_is_appended_is_read_back_whole_and_in_order(log: EventLog, join: Callable[..., Consumer]) -> None:
    written = events(50)
    positions = log.append_blocking(Topic.TURNS, written)
    records = read_all(join())
    assert [record.event for record in records] == written  # appending order, over all partitions
    assert [(r.partition, r.offset) for r in records] == [(p.partition, p.offset) for p in positions]
    assert all(record.error is None and record.appended_at.tzinfo is not None for record in records)


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
        outcome = Outcome(
            outcome_id=OutcomeId("o"),
            inference_id=new_inference_id(session),
            session_id=None,
            namespace=Namespace("n"),
            name="accepted",
            value=True,
            observed_at=NOW,
            received_at=NOW,
        )
        first, second = log.append_blocking(Topic.TURNS, [ended(session), outcome])
        assert first.partition == second.partition


def test_releases_are_partitioned_by_version(log: EventLog) -> None:
    def release(version: int) -> Release:
        return Release(version=Version(version), cluster="c", state="live", why="", by="gate", at=NOW)

    positions = log.append_blocking(Topic.RELEASES, [release(version) for version in range(2 * PARTITIONS)])
    assert [position.partition for position in positions] == [*range(PARTITIONS), *range(PARTITIONS)]


def test_concurrent_appends_are_all_there_once(log: EventLog, join: Callable[..., Consumer]) -> None:
    async def appender(name: int) -> None:
        for index in range(20):
            await log.append(Topic.TURNS, ended(f"{name}-{index}"))

    async def main() -> None:
        await asyncio.gather(*(appender(name) for name in range(16)))

    asyncio.run(main())
    sessions = [record.event.session_id for record in read_all(join()) if isinstance(record.event, SessionEnded)]
    assert sorted(sessions) == sorted(f"{name}-{index}" for name in range(16) for index in range(20))
    for name in range(16):  # one appender's records of one partition keep their order
        mine = [s for s in sessions if s.startswith(f"{name}-")]
        assert mine == sorted(mine, key=lambda s: int(s.split("-")[1]))


def test_giving_up_the_wait_does_not_lose_the_append(log: EventLog, join: Callable[..., Consumer]) -> None:
    async def main() -> None:
        task = asyncio.ensure_future(log.append(Topic.TURNS, ended("given up")))
        await asyncio.sleep(0)  # it is on its way
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await log.append(Topic.TURNS, ended("waited for"))

    asyncio.run(main())
    assert len(read_all(join())) == 2


def test_two_readings_yield_the_same_order(log: EventLog, join: Callable[..., Consumer]) -> None:
    for start in range(0, 60, 5):
        log.append_blocking(Topic.TURNS, [ended(f"s{index}") for index in range(start, start + 5)])
        log.append_blocking(Topic.REWARDS, [ended(f"r{start}")])
    by_ones = read_all(join("one", Topic.TURNS, Topic.REWARDS), 1)
    by_many = read_all(join("many", Topic.REWARDS, Topic.TURNS), 1000)
    assert by_ones == by_many
    assert len(by_ones) == 72


def test_a_group_goes_on_where_it_committed(adapter: Adapter, log: EventLog, tmp_path: Path) -> None:
    log.append_blocking(Topic.TURNS, events(30))
    member = log.consumer("group", [Topic.TURNS])
    first = member.poll(10, 0.0)
    done = {source: member.position(source) for source in member.assignment()}
    member.commit(done)
    member.poll(5, 0.0)  # read, but not done
    member.close()
    log.close()

    again = adapter.open(tmp_path)
    member = again.consumer("group", [Topic.TURNS])
    assert {source: member.committed(source) for source in done} == done
    rest = read_all(member)
    member.close()
    again.close()
    assert len(first) == 10
    assert [r.event for r in first + rest] == events(30)


def test_nothing_is_committed_before_the_first_commit(log: EventLog, join: Callable[..., Consumer]) -> None:
    log.append_blocking(Topic.TURNS, events(3))
    member = join()
    read_all(member)
    assert all(member.committed(source) is None for source in member.assignment())


def test_groups_do_not_disturb_each_other(log: EventLog, join: Callable[..., Consumer]) -> None:
    log.append_blocking(Topic.TURNS, events(10))
    one, other = join("one"), join("other")
    assert len(read_all(one)) == 10
    one.commit({source: one.position(source) for source in one.assignment()})
    assert len(read_all(other)) == 10


def test_seek_goes_back_and_forth(log: EventLog, join: Callable[..., Consumer]) -> None:
    log.append_blocking(Topic.TURNS, events(40))
    member = join()
    everything = read_all(member)
    source = everything[0].source
    mine = [record for record in everything if record.source == source]
    member.seek(source, 2)
    assert member.position(source) == 2
    assert read_all(member) == mine[2:]
    member.seek(source, log.end(source))
    assert read_all(member) == []
    member.seek(source, log.earliest(source))
    assert read_all(member) == mine


def test_poll_waits_no_longer_than_asked(log: EventLog, join: Callable[..., Consumer]) -> None:
    member = join()
    start = time.monotonic()
    assert member.poll(10, 0.05) == []
    assert 0.05 <= time.monotonic() - start < 2.0


def test_poll_returns_what_arrives_while_it_waits(log: EventLog, join: Callable[..., Consumer]) -> None:
    member = join()
    got: list[Record] = []
    reader = threading.Thread(target=lambda: got.extend(member.poll(10, 30.0)))
    reader.start()
    log.append_blocking(Topic.TURNS, events(1))
    reader.join(20.0)
    assert not reader.is_alive()
    assert [record.event for record in got] == events(1)


def test_only_the_topics_asked_for_are_read(log: EventLog, join: Callable[..., Consumer]) -> None:
    log.append_blocking(Topic.REWARDS, events(3))
    log.append_blocking(Topic.TURNS, events(2))
    member = join("group", Topic.TURNS)
    assert {source.topic for source in member.assignment()} == {Topic.TURNS}
    assert len(read_all(member)) == 2


def test_readers_of_all_partitions_do_not_disturb_each_other_nor_groups(
    log: EventLog, join: Callable[..., Consumer]
) -> None:
    written = events(30)
    log.append_blocking(Topic.TURNS, written)
    member, one, other = join(), log.reader([Topic.TURNS]), log.reader([Topic.TURNS])
    try:
        assert len(one.assignment()) == PARTITIONS
        for reading in (one, member, other):
            assert sorted(record.event.session_id for record in read_all(reading)) == sorted(
                event.session_id for event in written
            )
        assert all(one.position(source) == log.end(source) for source in one.assignment())
        log.append_blocking(Topic.TURNS, [ended("later")])
        assert [record.event for record in read_all(one)] == [ended("later")]
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
        assert next(record.offset for record in read_all(reader) if record.source == source) == 2
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
    deadline = time.monotonic() + 30
    while not listener.calls and time.monotonic() < deadline:
        member.poll(10, 0.01)
    every = frozenset(TopicPartition(Topic.TURNS, index) for index in range(PARTITIONS))
    assert listener.calls == [("assigned", every)]
    member.close()
    assert listener.calls == [("assigned", every), ("revoked", every)]


def test_epochs_grow_with_each_membership(log: EventLog) -> None:
    epochs = []
    for _ in range(3):
        member = log.consumer("group", [Topic.TURNS])
        epochs.append(member.epoch)
        member.close()
    assert epochs == sorted(set(epochs))


def test_a_second_member_is_refused_or_shares(adapter: Adapter, log: EventLog, join: Callable[..., Consumer]) -> None:
    log.append_blocking(Topic.TURNS, events(1))
    member = join()
    if adapter.rebalances:
        deadline = time.monotonic() + 30
        other = join()
        while not (member.assignment() and other.assignment()) and time.monotonic() < deadline:
            member.poll(1, 0.05)
            other.poll(1, 0.05)
        assert member.assignment().isdisjoint(other.assignment())
        assert len(member.assignment() | other.assignment()) == PARTITIONS
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
        pytest.skip("made to happen by each adapter's own means")
    log.append_blocking(Topic.TURNS, events(1))
    old = join()
    record = old.poll(1, 0.0)[0]
    (tmp_path / "log.db-groups" / "group.lock").unlink()  # what the lock prevents: a second member all the same
    new = join()
    assert new.epoch > old.epoch
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
