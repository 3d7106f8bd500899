"""The store's contract for the archive's progress: one owner at a time, step by step, on each database."""

import pytest

from core.errors import Fenced
from core.events import Topic
from core.ports import Store, TopicPartition
from core.store.archived import Archived

ONE = TopicPartition(Topic.TURNS, 1)
OTHER = TopicPartition(Topic.REWARDS, 1)


def known(store: Store) -> dict[TopicPartition, Archived]:
    with store.look() as view:
        return view.archived.reached()


def test_a_partition_goes_on_from_stretch_to_stretch(store: Store) -> None:
    assert known(store) == {}
    with store.work() as work:
        work.archived.begin(ONE, 5)
        work.archived.begin(OTHER, 0)
        work.archived.plan(ONE, 5, 9)
    assert known(store) == {ONE: Archived(5, 9), OTHER: Archived(0, None)}
    with store.work() as work:
        work.archived.finish(ONE, 5, 9)
    assert known(store) == {ONE: Archived(9, None), OTHER: Archived(0, None)}


@pytest.mark.parametrize(
    "late",
    [
        lambda work: work.archived.begin(ONE, 0),
        lambda work: work.archived.plan(ONE, 0, 7),
        lambda work: work.archived.plan(ONE, 4, 7),
        lambda work: work.archived.plan(OTHER, 0, 7),
        lambda work: work.archived.finish(ONE, 0, 4),
        lambda work: work.archived.finish(ONE, 4, 7),
    ],
)
def test_whoever_comes_late_is_refused(store: Store, late: object) -> None:
    """Another archiver has finished 0 to 4 and planned 4 to 8."""
    with store.work() as work:
        work.archived.begin(ONE, 0)
        work.archived.plan(ONE, 0, 4)
        work.archived.finish(ONE, 0, 4)
        work.archived.plan(ONE, 4, 8)
    with pytest.raises(Fenced, match=r"onward\.(turns|rewards):1"), store.work() as work:
        late(work)  # type: ignore[operator]
    assert known(store) == {ONE: Archived(4, 8)}
