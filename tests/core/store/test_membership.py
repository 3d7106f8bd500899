"""A member continues at the offsets in the store, and owns no partition unless the store confirms it."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from made_events import ended
from ready_stores import open_ready

from core.errors import Fenced, LogError, StoreUnavailable, Unavailable
from core.events import Topic
from core.ports import TopicPartition
from core.records.membership import Membership
from core.store import SqlStore
from ingest.sqlite.log import SqliteEventLog

GROUP = "group"
ONLY = TopicPartition(Topic.TURNS, 0)


@pytest.fixture
def log(tmp_path: Path) -> Iterator[SqliteEventLog]:
    log = SqliteEventLog(tmp_path / "log.db", 1, 0.01)
    log.append_blocking(Topic.TURNS, [ended(number) for number in range(6)])
    yield log
    log.close()


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqlStore]:
    store = open_ready(tmp_path / "store.db")
    yield store
    store.close()


@pytest.fixture
def member(log: SqliteEventLog, store: SqlStore) -> Iterator[Membership]:
    member = Membership(log, store, GROUP, [Topic.TURNS])
    yield member
    member.close()


def read(member: Membership, count: int = 2) -> list[int]:
    return [record.offset for record in member.poll(count, 0)]


def forget_until(path: Path, offset: int) -> None:
    """Delete the records before `offset`, as retention does."""
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("DELETE FROM records WHERE record_offset < ?", (offset,))
        connection.commit()


def test_what_is_written_is_not_read_again_and_what_is_not_is(member: Membership, store: SqlStore) -> None:
    assert read(member) == [0, 1]
    with member.writing({ONLY: 2}):
        pass
    assert read(member) == [2, 3]
    member.recover(StoreUnavailable("away"))
    assert read(member) == [2, 3]
    assert (dict(member.offsets), member.behind()) == ({ONLY: 2}, {ONLY: 4})
    with store.look() as view:
        assert view.offsets.of_group(GROUP) == {ONLY: 2}


def test_what_fails_moves_nothing(member: Membership) -> None:
    def fail() -> None:
        with member.writing({ONLY: 2}):
            raise ZeroDivisionError

    assert read(member) == [0, 1]
    with pytest.raises(ZeroDivisionError):
        fail()
    assert dict(member.offsets) == {ONLY: 0}


def test_the_next_member_goes_on_where_the_store_stands(log: SqliteEventLog, store: SqlStore) -> None:
    first = Membership(log, store, GROUP, [Topic.TURNS])
    assert read(first) == [0, 1]
    with first.writing({ONLY: 1}):
        pass
    first.commit({ONLY: 2})  # the log was told more
    first.close()
    second = Membership(log, store, GROUP, [Topic.TURNS])
    assert read(second) == [1, 2]
    second.close()


def test_it_begins_with_the_earliest_record(log: SqliteEventLog, member: Membership, tmp_path: Path) -> None:
    forget_until(tmp_path / "log.db", 4)
    assert read(member, 9) == [4, 5]


def test_records_that_are_gone_and_were_never_read_are_an_error(
    log: SqliteEventLog, store: SqlStore, tmp_path: Path
) -> None:
    first = Membership(log, store, GROUP, [Topic.TURNS])
    read(first)
    with first.writing({ONLY: 2}):
        pass
    first.close()
    forget_until(tmp_path / "log.db", 4)
    second = Membership(log, store, GROUP, [Topic.TURNS])
    with pytest.raises(LogError, match=r"onward\.turns:0 up to offset 2, but the log begins at 4"):
        read(second)
    second.close()


def test_while_the_store_is_away_it_owns_nothing(
    member: Membership, store: SqlStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away() -> None:
        raise StoreUnavailable("away")

    with monkeypatch.context() as patch:
        patch.setattr(store, "begin", away)
        assert read(member) == [], "what is read without an owner is not given out"
        with pytest.raises(Unavailable) as caught:
            read(member)
        member.recover(caught.value)
        assert not member.offsets
    assert read(member) == [0, 1]


def test_a_zombie_is_refused_by_the_log_and_changes_nothing(
    log: SqliteEventLog, store: SqlStore, member: Membership, tmp_path: Path
) -> None:
    assert read(member) == [0, 1]
    (tmp_path / "log.db-groups" / f"{GROUP}.lock").unlink()
    heir = Membership(log, store, GROUP, [Topic.TURNS])
    assert read(heir) == [0, 1]

    def write_as_zombie() -> None:
        with member.writing({ONLY: 2}):
            raise AssertionError("never reached")

    with pytest.raises(Fenced) as caught:
        write_as_zombie()
    member.recover(caught.value)
    for _ in range(3):
        with pytest.raises(Fenced, match="another member"):
            read(member)
    with heir.writing({ONLY: 2}):
        pass
    heir.close()
    with store.work() as work:
        assert work.offsets.take_over(GROUP, [ONLY]) == {ONLY: (3, 2)}, "the two of them, and this one"
