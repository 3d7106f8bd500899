"""How far the log is archived: one at a time, step by step, on each database."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from stores import KINDS, database

from core.errors import Fenced
from core.events import Topic
from core.ports import Store, TopicPartition
from core.store.archived import Archived, begin, finish, get_archived, plan

ONE = TopicPartition(Topic.TURNS, 1)
OTHER = TopicPartition(Topic.REWARDS, 1)


@pytest.fixture(params=KINDS)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    with database(request.param, tmp_path) as home:
        store = home.open()
        yield store
        store.close()


def known(store: Store) -> dict[TopicPartition, Archived]:
    with store.read() as connection:
        return get_archived(connection)


def test_a_partition_goes_on_from_stretch_to_stretch(store: Store) -> None:
    assert known(store) == {}
    with store.begin() as connection:
        begin(connection, ONE, 5)
        begin(connection, OTHER, 0)
        plan(connection, ONE, 5, 9)
    assert known(store) == {ONE: Archived(5, 9), OTHER: Archived(0, None)}
    with store.begin() as connection:
        finish(connection, ONE, 5, 9)
    assert known(store) == {ONE: Archived(9, None), OTHER: Archived(0, None)}


@pytest.mark.parametrize(
    "late",
    [
        lambda connection: begin(connection, ONE, 0),
        lambda connection: plan(connection, ONE, 0, 7),
        lambda connection: plan(connection, ONE, 4, 7),
        lambda connection: plan(connection, OTHER, 0, 7),
        lambda connection: finish(connection, ONE, 0, 4),
        lambda connection: finish(connection, ONE, 4, 7),
    ],
)
def test_whoever_comes_late_is_refused(store: Store, late: object) -> None:
    """Another has finished 0 to 4, and planned 4 to 8."""
    with store.begin() as connection:
        begin(connection, ONE, 0)
        plan(connection, ONE, 0, 4)
        finish(connection, ONE, 0, 4)
        plan(connection, ONE, 4, 8)
    with pytest.raises(Fenced, match=r"onward\.(turns|rewards):1"), store.begin() as connection:
        late(connection)  # type: ignore[operator]
    assert known(store) == {ONE: Archived(4, 8)}
