"""The offsets of consumer groups in the store, and the ownership of partitions by their members.

A group's offset says how far its effects on the store reach. The log assigns partitions to members, but a member that
lost one may not have noticed: a zombie, paused or cut off. So the store decides. Each owner begins with `take_over`,
which gives it an epoch, and begins each of its transactions with `advance` or `fence`, which let only the latest epoch
pass.

That the latest epoch is the rightful owner's follows from the order of locks. `take_over` locks the partition's row;
then, in the same transaction, the member commits to the log, which refuses a member of an older generation than the
group's (Fenced: the transaction is rolled back, and the epoch with it). Take a zombie Z and the rightful owner R.

* Z commits to the log after R has joined: it is refused, and leaves no trace.
* Z commits to the log before that, and pauses. It holds the row's lock, so R, who came later, waits for it. When Z goes
  on, R's epoch comes after Z's; when Z's session ends, Z's epoch is rolled back.

Either way the epochs of a row grow in the order of the log's generations, and any later write of Z is refused, because
its epoch is no longer the latest. A Z that never goes on is ended (`core.store.database.silent`). And since `fence`
locks the row too, an owner's transactions on a partition exclude those of all others: what it read in one is still so
when it writes.
"""

from collections.abc import Iterable, Mapping
from typing import Final

from sqlalchemy import bindparam, select, tuple_, update

from core.errors import Fenced
from core.events import TopicPartition
from core.store.database import tables
from core.store.database.repository import Repository
from core.store.database.silent import end_silent_owners
from core.store.database.statements import insert_new, upsert

WRITER: Final = "writer"
"""The group that copies turns from the log to the store: its offsets say how far the store reaches."""

_table = tables.offsets
_of_group = _table.c.consumer_group == bindparam("group")
_place = tuple_(_table.c.topic, _table.c.partition)
_EPOCHS = (
    select(_table.c.topic, _table.c.partition, _table.c.epoch)
    .where(_of_group, _place.in_(bindparam("places", expanding=True)))
    .order_by(_table.c.topic, _table.c.partition)
    .with_for_update()
)
_TAKE = (
    update(_table)
    .where(_of_group, _table.c.topic == bindparam("of_topic"), _table.c.partition == bindparam("of_partition"))
    .values(epoch=_table.c.epoch + 1)
    .returning(_table.c.epoch, _table.c.next_offset)
)
_ADVANCE = (
    update(_table)
    .where(_of_group, _table.c.topic == bindparam("of_topic"), _table.c.partition == bindparam("of_partition"))
    .values(next_offset=bindparam("to"))
)


class OffsetsReader(Repository):
    """The groups' next offsets."""

    def of_group(self, group: str) -> dict[TopicPartition, int]:
        """Return the group's next offset in each partition where it has done something."""
        rows = self._connection.execute(
            select(_table).where(_table.c.consumer_group == group, _table.c.next_offset.is_not(None))
        )
        return {TopicPartition(row.topic, row.partition): row.next_offset for row in rows}


class Offsets(OffsetsReader):
    """The groups' offsets; each moves in the transaction of the effects, written by the partition's owner alone."""

    def take_over(
        self, group: str, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, tuple[int, int | None]]:
        """Take over partitions, and return the (epoch, next offset) of each.

        The offset is None where nothing was done yet. Until the end of the transaction nobody else takes the partitions
        over or writes as their owner; the caller then commits to the log, to make sure that they are its own."""
        sources = sorted(partitions)
        end_silent_owners(self._connection, _table)
        insert_new(
            self._connection, _table, [{**_row(group, source), "next_offset": None, "epoch": 0} for source in sources]
        )
        taken = {}
        for source in sources:
            row = self._connection.execute(_TAKE, _key(group, source)).one()
            taken[source] = int(row.epoch), row.next_offset
        return taken

    def fence(self, group: str, epochs: Mapping[TopicPartition, int]) -> None:
        """Lock the partitions, as the first statement of an owner's transaction.

        Raises Fenced if a partition has had another owner since."""
        if not epochs:
            return
        places = [(source.topic.value, source.partition) for source in epochs]
        rows = self._connection.execute(_EPOCHS, {"group": group, "places": places})
        found = {TopicPartition(row.topic, row.partition): row.epoch for row in rows}
        for source, epoch in sorted(epochs.items()):
            if found.get(source) != epoch:
                raise Fenced(f"group {group} lost {source}: its epoch is {found.get(source)}, not {epoch}")

    def advance(self, group: str, offsets: Mapping[TopicPartition, int], epochs: Mapping[TopicPartition, int]) -> None:
        """Set the next offsets, as the first statement of the transaction that does all that comes before them.

        Raises Fenced as `fence` does."""
        self.fence(group, {source: epochs[source] for source in offsets})
        if offsets:
            self._connection.execute(
                _ADVANCE, [{**_key(group, source), "to": to} for source, to in sorted(offsets.items())]
            )

    def put(self, group: str, source: TopicPartition, next_offset: int) -> None:
        """Set the next offset of a group without members in the log; its caller is fenced by a lease."""
        upsert(self._connection, _table, [{**_row(group, source), "next_offset": next_offset, "epoch": 0}])


def _row(group: str, source: TopicPartition) -> dict[str, object]:
    return {"consumer_group": group, "topic": source.topic.value, "partition": source.partition}


def _key(group: str, source: TopicPartition) -> dict[str, object]:
    return {"group": group, "of_topic": source.topic.value, "of_partition": source.partition}
