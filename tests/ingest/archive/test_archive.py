"""Archive and retention: each record stays in the log or the archive, and is read once, whatever is killed."""

import sqlite3
import tempfile
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Any

import made_events
import msgspec
import pyarrow.dataset as ds
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from stepping import step

from core import telemetry
from core.blobs import FsspecBlobs
from core.clock import ManualClock, to_micros
from core.errors import Fenced, LogError, NewerSchema
from core.events import Event, GateVerdict, PolicyVersion, Reward, SessionEnded, Topic
from core.ids import Namespace, PolicyRef, SessionId
from core.ports import Record, TopicPartition
from core.store import SqlStore, open_sqlite
from core.store.archived import Archived
from core.store.work import Work
from ingest.archive.archive import TOPICS, Archiver
from ingest.archive.files import SCHEMA, read_records
from ingest.archive.history import History
from ingest.archive.keeper import Keeper
from ingest.archive.names import ArchivedRange, ArchiveFile, parse
from ingest.archive.retention import Floor, Retention, archived, committed_by, learned, read_by
from ingest.sqlite.log import SqliteEventLog

PARTITIONS = 2
START = datetime(2026, 11, 20, 23, 0, tzinfo=UTC)
KEEP = timedelta(hours=3)
NAMESPACES = ("a", "größe/50%", "__HIVE_DEFAULT_PARTITION__", "..")


class Killed(BaseException):
    """The end of the process, as by SIGKILL."""


@dataclass
class Fate:
    """A countdown of the steps until the process is killed; None means never."""

    steps: int | None = None

    def step(self) -> None:
        if self.steps is not None:
            if self.steps == 0:
                raise Killed
            self.steps -= 1


class MortalBlobs(FsspecBlobs):
    def __init__(self, url: str | Path, fate: Fate) -> None:
        super().__init__(url)
        self._fate = fate

    def put(self, path: str, data: bytes) -> None:
        self._fate.step()
        super().put(path, data)
        self._fate.step()


class MortalStore:
    """A store that may be killed before or after a transaction."""

    def __init__(self, store: SqlStore, fate: Fate) -> None:
        self._store, self._fate = store, fate

    @contextmanager
    def work(self) -> Iterator[Work]:
        with self._store.work() as work:
            yield work
            self._fate.step()
        self._fate.step()

    def look(self) -> Any:
        return self._store.look()

    def close(self) -> None:
        self._store.close()


@cache
def empty_store() -> bytes:
    with tempfile.TemporaryDirectory() as directory:
        open_sqlite(Path(directory) / "store.db").close()
        return (Path(directory) / "store.db").read_bytes()


@dataclass
class World:
    directory: Path
    fate: Fate = field(default_factory=Fate)
    appended: dict[TopicPartition, list[tuple[int, bytes, datetime]]] = field(default_factory=dict)
    read_to: dict[TopicPartition, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.directory.mkdir(exist_ok=True)
        self.log = SqliteEventLog(self.directory / "log.db", PARTITIONS, 0.01)
        (self.directory / "store.db").write_bytes(empty_store())
        self.store = open_sqlite(self.directory / "store.db")
        self.blobs = MortalBlobs(f"memory://{uuid.uuid4().hex}", self.fate)
        self.clock = ManualClock(START)

    def close(self) -> None:
        self.log.close()
        self.store.close()

    def append(self, topic: Topic, events: Sequence[Event], *, broken: bool = False) -> None:
        """Append the events at the clock's time; broken ones do not decode."""
        positions = self.log.append_blocking(topic, events)
        with closing(sqlite3.connect(self.directory / "log.db")) as connection:
            for position in positions:
                place = (position.topic, position.partition, position.offset)
                where = "WHERE topic = ? AND partition = ? AND record_offset = ?"
                now = to_micros(self.clock.now())
                connection.execute(f"UPDATE records SET appended_at = ? {where}", (now, *place))
                if broken:
                    connection.execute(f"UPDATE records SET raw = ? {where}", (b"\x00no event", *place))
                raw = connection.execute(f"SELECT raw FROM records {where}", place).fetchone()[0]
                source = TopicPartition(position.topic, position.partition)
                self.appended.setdefault(source, []).append((position.offset, raw, self.clock.now()))
            connection.commit()

    def archiver(self, segment_bytes: int = 300) -> Archiver:
        return Archiver(self.log, MortalStore(self.store, self.fate), self.blobs, segment_bytes)

    def keeper(self, segment_bytes: int = 300, *, archives: bool = True) -> Keeper:
        floors: list[Floor] = [lambda _, source: self.read_to.get(source, 0)]
        if archives:
            floors.append(archived)
        retention = Retention(self.log, self.store, self.clock, KEEP.total_seconds(), dict.fromkeys(TOPICS, floors))
        return Keeper(self.log, self.archiver(segment_bytes) if archives else None, retention, 60.0)

    def keep(self, segment_bytes: int = 300, steps: int | None = None) -> None:
        """Run a whole round, or this many steps of it before it is killed."""
        self.fate.steps = steps
        keeper = self.keeper(segment_bytes)
        with suppress(Killed):
            for _ in keeper.round():
                pass
        self.fate.steps = None

    def read_all(self) -> None:
        for source in self.appended:
            self.read_to[source] = self.log.end(source)

    def history(self, topic: Topic = Topic.TURNS, **choice: Any) -> list[Record]:
        return [record for batch in History(self.log, self.blobs, topic, **choice).read() for record in batch]

    def in_archive(self, topic: Topic) -> list[Record]:
        paths = self.blobs.list(f"archive/{topic.value.removeprefix('onward.')}/")
        return [record for path in paths for record in read_records(self.blobs.get(path), path)]

    def files(self) -> dict[str, bytes]:
        return {path: self.blobs.get(path) for path in self.blobs.list("archive/")}

    def known(self) -> dict[TopicPartition, Archived]:
        with self.store.look() as view:
            return view.archived.reached()

    def check(self) -> None:
        for topic in TOPICS:
            found: dict[TopicPartition, list[tuple[int, bytes, datetime]]] = {}
            for record in self.history(topic):
                found.setdefault(record.source, []).append((record.offset, record.raw, record.appended_at))
            assert found == {source: rows for source, rows in self.appended.items() if source.topic == topic}
            kept = [(r.source, r.offset) for r in self.in_archive(topic)]
            assert len(kept) == len(set(kept)), "twice in the archive"
            for source, known in self.known().items():
                if source.topic == topic:
                    assert set(range(known.next_offset)) <= {offset for where, offset in kept if where == source}


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path)
    yield world
    world.close()


def ended(session: str, namespace: str = "a") -> SessionEnded:
    return made_events.ended(session, namespace=Namespace(namespace), received_at=START)


def reward(session: str, namespace: str = "a") -> Reward:
    own = {"session_id": SessionId(session), "namespace": Namespace(namespace)}
    return made_events.reward(f"of-{session}", decided_at=START, final=True, **own)


# ------------------------------------------------------------------------------------------ whatever happens

appends = st.tuples(
    st.just("append"),
    st.sampled_from(TOPICS),
    st.lists(st.tuples(st.integers(0, 5), st.sampled_from(NAMESPACES)), min_size=1, max_size=12),
    st.booleans(),
)
rounds = st.tuples(st.just("keep"), st.sampled_from([1, 100, 300, 10_000]), st.none() | st.integers(0, 30))
steps = st.one_of(
    appends,
    appends,
    rounds,
    st.tuples(st.just("pass"), st.sampled_from([0.5, 2.0, 5.0, 24.0])),
    st.tuples(st.just("read"), st.integers(0, PARTITIONS - 1), st.floats(0, 1)),
)


@settings(max_examples=30)
@given(st.lists(steps, max_size=14))
def test_each_record_is_read_once_whatever_is_appended_archived_killed_and_deleted(story: list[Any]) -> None:
    with tempfile.TemporaryDirectory() as directory, closing(World(Path(directory))) as world:
        for step in story:
            match step:
                case ("append", topic, sessions, broken):
                    make: Callable[..., Event] = ended if topic == Topic.TURNS else reward
                    world.append(topic, [make(f"s{number}", name) for number, name in sessions], broken=broken)
                case ("keep", segment_bytes, kill_after):
                    world.keep(segment_bytes, kill_after)
                case ("pass", hours):
                    world.clock.advance(3600 * hours)
                case ("read", partition, share):
                    for topic in TOPICS:
                        source = TopicPartition(topic, partition)
                        world.read_to[source] = max(world.read_to.get(source, 0), int(share * world.log.end(source)))
            for source, rows in world.appended.items():
                earliest = world.log.earliest(source)
                assert earliest <= world.read_to.get(source, 0), "deleted before it was read"
                assert all(at <= world.clock.now() - KEEP for offset, _, at in rows if offset < earliest), "too young"
            world.check()


def test_a_crash_and_a_repeat_make_the_same_files_at_every_step(tmp_path: Path) -> None:
    outcomes: list[dict[str, bytes]] = []
    was_killed = True
    while was_killed:
        with closing(World(tmp_path / str(len(outcomes)))) as world:
            for number in range(2):
                events = [ended("s", name) for name in NAMESPACES[:2]]
                world.append(Topic.TURNS, events, broken=number == 1)
                world.clock.advance(3600)
            world.keep(200, len(outcomes))
            known = world.known()
            was_killed = len(known) < 2 * PARTITIONS or any(k.next_offset < world.log.end(s) for s, k in known.items())
            before = world.files()
            world.append(Topic.TURNS, [ended("s") for _ in range(4)])  # the plan holds all the same
            world.keep(1)  # and so where the settings are others
            after = world.files()
            assert before.items() <= after.items(), "what was there is as it was, byte for byte"
            world.check()
            outcomes.append(after)
    assert len(outcomes) > 10


# ------------------------------------------------------------------------------------------ the files


def test_files_are_by_namespace_and_day_and_anybody_can_read_them(world: World) -> None:
    world.append(Topic.TURNS, [ended("s", name) for name in NAMESPACES])
    world.append(Topic.TURNS, [ended("s")], broken=True)
    world.clock.advance(3600)  # past midnight
    world.append(Topic.TURNS, [ended("s", "a")])
    world.append(Topic.REWARDS, [reward("s")])
    world.keep(10_000)
    one = world.appended.popitem()[0].partition
    folders = {path.rsplit("/", 1)[0]: path.rsplit("/", 1)[1] for path in world.blobs.list("archive/turns/")}
    assert folders == dict.fromkeys(
        (
            "archive/turns/namespace=a/day=2026-11-20",
            "archive/turns/namespace=gr%C3%B6%C3%9Fe%2F50%25/day=2026-11-20",
            "archive/turns/namespace=%5F_HIVE_DEFAULT_PARTITION__/day=2026-11-20",
            "archive/turns/namespace=../day=2026-11-20",
            "archive/turns/namespace=__HIVE_DEFAULT_PARTITION__/day=2026-11-20",
            "archive/turns/namespace=a/day=2026-11-21",
        ),
        f"{one:04d}-000000000000-000000000005.parquet",
    )
    for path, content in world.files().items():
        target = world.directory / "copy" / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)
    rows = ds.dataset(world.directory / "copy" / "archive" / "turns", partitioning="hive").to_table().to_pylist()
    rows.sort(key=lambda row: int(row["offset"]))
    assert [row["namespace"] for row in rows] == ["a", "größe/50%", None, "..", None, "a"]  # Hive knows no other null
    assert [row["kind"] for row in rows] == ["session_ended"] * 4 + [None, "session_ended"]
    assert [row["session_id"] for row in rows] == ["s"] * 4 + [None, "s"]
    assert [row["day"] for row in rows] == ["2026-11-20"] * 5 + ["2026-11-21"]
    (rewarded,) = ds.dataset(world.directory / "copy" / "archive" / "rewards").to_table().to_pylist()
    assert (rewarded["kind"], rewarded["inference_id"], rewarded["session_id"]) == ("reward", "of-s", "s")
    assert set(rewarded) == set(SCHEMA.names)


@given(
    st.builds(
        ArchiveFile,
        stretch=st.builds(ArchivedRange, st.integers(0, 2000), st.integers(0, 10**13), st.integers(10**13 + 1, 10**14)),
        topic=st.sampled_from(TOPICS),
        namespace=st.none() | st.text(min_size=1) | st.sampled_from(NAMESPACES),
        day=st.dates(),
    )
)
def test_a_path_says_what_the_file_has(file: ArchiveFile) -> None:
    assert parse(file.topic, file.path) == file


def test_a_stretch_is_bounded_in_bytes(world: World) -> None:
    world.append(Topic.TURNS, [ended(f"session-{number % 3}") for number in range(300)])
    world.keep(2000)
    sizes = {}
    for path in world.blobs.list("archive/turns/"):
        raw = [len(record.raw) for record in read_records(world.blobs.get(path), path)]
        sizes[path] = sum(raw) - raw[-1]
    assert len(sizes) > 5
    assert max(sizes.values()) < 2000


# ------------------------------------------------------------------------------------------ two of them, and others'


def test_of_two_who_archive_one_goes_on_and_nothing_is_twice(world: World) -> None:
    world.append(Topic.TURNS, [ended("s") for _ in range(20)])
    source = next(iter(world.appended))
    zombie = world.archiver(200).archive(source)
    next(zombie)
    for _ in world.archiver(500).archive(source):
        pass
    with pytest.raises(Fenced, match=r"onward\.turns:\d: another archives|archive of onward\.turns:\d"):
        next(zombie)
    world.check()


def test_an_archive_that_the_store_does_not_know_is_refused(world: World) -> None:
    world.append(Topic.TURNS, [ended("s")])
    world.keep()
    world.store.close()
    (world.directory / "store.db").write_bytes(empty_store())
    world.store = open_sqlite(world.directory / "store.db")
    with pytest.raises(LogError, match=r"archive\.url: archive/turns/.*this store knows nothing of it"):
        world.keep()


# ------------------------------------------------------------------------------------------ retention


def old_world(world: World) -> TopicPartition:
    world.append(Topic.TURNS, [ended("s") for _ in range(10)])
    world.clock.advance(5 * 3600)
    world.append(Topic.TURNS, [ended("s") for _ in range(4)])
    return next(iter(world.appended))


@pytest.mark.parametrize(("read_to", "left_from"), [(0, 0), (7, 7), (10, 10), (14, 10)])
def test_what_is_old_is_deleted_up_to_the_slowest_reader(world: World, read_to: int, left_from: int) -> None:
    source = old_world(world)
    world.read_to[source] = read_to
    world.keep()
    assert world.log.earliest(source) == left_from
    labels = {"topic": source.topic, "partition": source.partition}
    assert telemetry.LOG_OVERDUE.labels(**labels)._value.get() == 10 - left_from
    assert telemetry.ARCHIVE_LAG.labels(**labels)._value.get() == 0
    world.check()


def test_nothing_goes_before_it_is_archived(world: World) -> None:
    source = old_world(world)
    world.read_all()
    keeper = world.keeper(200)
    keeper._archiver = None  # type: ignore[attr-defined]  # away
    for _ in keeper.round():
        pass
    assert world.log.earliest(source) == 0
    world.keep()
    assert world.log.earliest(source) == 10


def test_without_an_archive_age_and_readers_decide(world: World) -> None:
    source = old_world(world)
    world.read_all()
    for _ in world.keeper(archives=False).round():
        pass
    assert world.log.earliest(source) == 10
    assert world.files() == {}
    assert [record.offset for record in world.history()] == [10, 11, 12, 13]


def test_floors_are_where_groups_and_the_learner_stand(world: World) -> None:
    turns, rewards = TopicPartition(Topic.TURNS, 0), TopicPartition(Topic.REWARDS, 1)
    with world.store.work() as work:
        assert read_by("writer")(work, turns) == 0
        work.offsets.put("writer", turns, 12)
        assert read_by("writer")(work, turns) == 12
        assert read_by("scorer")(work, turns) == 0
        assert learned(2)(work, rewards) == 0
        for offset in (3, 8, 9):
            version = work.policies.allocate(START)
            work.policies.put(published(version, {str(rewards): offset}))
        assert learned(2)(work, rewards) == 8, "it may go on from the one before"
        assert learned(9)(work, rewards) == 3
        proposed = msgspec.structs.replace(
            published(work.policies.allocate(START), {}), verdict=GateVerdict(action="pass", why="better")
        )
        work.policies.put(proposed)
        assert learned(3)(work, rewards) == 8, "what was made elsewhere has read nothing here"
        assert learned(9)(work, TopicPartition(Topic.REWARDS, 0)) == 0
        assert committed_by(world.log, "releases")(work, turns) is None
    member = world.log.consumer("releases", [Topic.TURNS])
    member.commit({turns: 5})
    member.close()
    with world.store.look() as view:
        assert committed_by(world.log, "releases")(view, turns) == 5


def published(version: PolicyRef, log_offsets: dict[str, int]) -> PolicyVersion:
    return made_events.policy(version, log_offsets=log_offsets)


# ------------------------------------------------------------------------------------------ reading both


def test_times_and_namespaces_choose_the_same_from_log_and_archive(world: World) -> None:
    for hour in range(12):
        world.append(Topic.TURNS, [ended(f"s{n}", NAMESPACES[(n + hour) % 3]) for n in range(6)])
        world.clock.advance(3600)
    choices = [
        {},
        {"begin": START + timedelta(hours=2)},
        {"end": START + timedelta(hours=5)},
        {"begin": START + timedelta(hours=1, minutes=30), "end": START + timedelta(hours=7)},
        {"begin": START + timedelta(hours=7), "end": START + timedelta(hours=7)},
        {"namespace": Namespace(NAMESPACES[1])},
        {"namespace": Namespace("nobody")},
        {"namespace": Namespace("a"), "begin": START + timedelta(hours=4), "end": START + timedelta(hours=5)},
    ]

    def look() -> list[list[Record]]:
        found = [world.history(**choice) for choice in choices]
        return [sorted(records, key=lambda record: (record.source, record.offset)) for records in found]

    from_log = look()
    assert [len(records) for records in from_log] == [72, 60, 30, 30, 0, 24, 0, 2]
    world.keep()
    assert look() == from_log
    world.read_all()
    world.keep()
    assert max(world.log.earliest(source) for source in world.appended) > 10
    assert look() == from_log
    world.clock.advance(48 * 3600)
    world.keep()
    assert all(world.log.earliest(s) == world.log.end(s) - 1 for s in world.appended), "but for the latest"
    assert look() == from_log


def test_retention_in_the_middle_of_a_reading_changes_nothing(world: World) -> None:
    world.append(Topic.TURNS, [ended(f"s{number}") for number in range(1500)])
    world.clock.advance(24 * 3600)
    expected = world.history()
    reading = History(world.log, world.blobs, Topic.TURNS).read()
    found = list(next(reading))
    world.read_all()
    world.keep(100_000)
    assert any(world.log.earliest(source) > 500 for source in world.appended)
    for records in reading:
        found += records
    by_place = sorted(found, key=lambda record: (record.source, record.offset))
    assert by_place == sorted(expected, key=lambda record: (record.source, record.offset))


def test_what_is_in_neither_is_said(world: World, caplog: pytest.LogCaptureFixture) -> None:
    source = old_world(world)
    world.log.delete_before(source, 4)
    assert len(world.history()) == 10
    assert f"{source}: 4 records before offset 4 are neither in log nor archive" in caplog.text


# ------------------------------------------------------------------------------------------ the stage


def test_the_keeper_waits_when_something_is_away_and_goes_on(world: World) -> None:
    old_world(world)
    world.read_all()
    keeper = world.keeper()
    real, world.blobs.put = world.blobs.put, full  # type: ignore[method-assign]
    while keeper.state == "ok":
        step(keeper, 0.0)
    assert "No space left" in keeper.state
    world.blobs.put = real  # type: ignore[method-assign]
    keeper._next_s = 0.0  # type: ignore[attr-defined]  # it looks again by itself, some seconds later
    while keeper.archived < 14 or keeper.deleted < 10 or keeper.state != "ok":
        step(keeper, 0.0)
    while step(keeper, 0.0):
        pass
    keeper.close()
    world.check()


def full(path: str, data: bytes) -> None:
    raise OSError(28, "No space left on device", path)


def test_it_stops_before_a_newer_builds_record(world: World) -> None:
    world.append(Topic.TURNS, [ended("s")])
    with closing(sqlite3.connect(world.directory / "log.db")) as connection:
        connection.execute("UPDATE records SET raw = ?", (msgspec.msgpack.encode((99, {})),))
        connection.commit()
    keeper = world.keeper()
    with pytest.raises(NewerSchema, match="schema 99"):
        list(keeper.round())
    keeper.close()
    assert world.files() == {}
