"""Rewards and their outbox: written with the ledger in one transaction, published to the log from here."""

import sys
from collections.abc import Iterable, Iterator, Sequence

import msgspec
from sqlalchemy import ColumnElement, func, select, update

from core.clock import to_micros
from core.events import Reward
from core.ids import InferenceId, Namespace
from core.store.database import tables
from core.store.database.locks import Lock, hold
from core.store.database.repository import Repository
from core.store.database.statements import Among, insert_new, within

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Reward).decode
_table = tables.rewards
_PUBLISHED = update(_table).where(Among(_table.c.sequence)).values(published=True)


class RewardsReader(Repository):
    """The rewards of turns, in the order in which they were decided."""

    def unpublished(self, partitions: Iterable[int], limit: int) -> list[tuple[int, Reward]]:
        """Return the oldest (sequence, reward) pairs of these partitions that are still in the outbox."""
        rows = self._connection.execute(
            select(_table.c.sequence, _table.c.record)
            .where(tables.WAITS, _table.c.partition.in_(list(partitions)))
            .order_by(_table.c.sequence)
            .limit(limit)
        )
        return [(row.sequence, _decode(row.record)) for row in rows]

    def after(
        self, namespace: Namespace, after_sequence: int, limit: int, most_bytes: int = sys.maxsize
    ) -> list[tuple[int, Reward]]:
        """Return (sequence, reward) pairs in order of emission, beginning after `after_sequence`.

        They are at most so many, and their records so many bytes; the next one is there in any case."""
        later = _table.c.namespace == namespace, _table.c.sequence > after_sequence
        return self._page(later, _table.c.sequence.asc(), limit, most_bytes)

    def latest(
        self, namespace: Namespace, before_sequence: int, limit: int, most_bytes: int = sys.maxsize
    ) -> list[tuple[int, Reward]]:
        """Return the (sequence, reward) pairs before `before_sequence`, the newest first, bounded as by `after`."""
        earlier = _table.c.namespace == namespace, _table.c.sequence < before_sequence
        return self._page(earlier, _table.c.sequence.desc(), limit, most_bytes)

    def _page(
        self, which: tuple[ColumnElement[bool], ...], order: ColumnElement[int], limit: int, most_bytes: int
    ) -> list[tuple[int, Reward]]:
        """Read the sizes first: a client of Postgres is sent all that a query finds."""
        sizes = self._connection.execute(
            select(_table.c.sequence, func.length(_table.c.record).label("size"))
            .where(*which)
            .order_by(order)
            .limit(limit)
        )
        count = len(within(most_bytes, ((row.sequence, row.size) for row in sizes)))
        rows = self._connection.execute(
            select(_table.c.sequence, _table.c.record).where(*which).order_by(order).limit(count)
        )
        return [(row.sequence, _decode(row.record)) for row in rows]

    def last_sequence(self, namespace: Namespace) -> int:
        return (
            self._connection.execute(
                select(func.max(_table.c.sequence)).where(_table.c.namespace == namespace)
            ).scalar()
            or 0
        )

    def of_turns(self, inference_ids: Sequence[InferenceId]) -> list[Reward]:
        rows = self._connection.execute(
            select(_table.c.record).where(_table.c.inference_id.in_(list(inference_ids))).order_by(_table.c.sequence)
        )
        return [_decode(row.record) for row in rows]

    def newest_of_turns(self, inference_ids: Sequence[InferenceId], most: int, most_bytes: int) -> list[Reward]:
        """Return the newest rewards of turns, in order.

        They are at most so many, and their records so many bytes; the newest is there in any case."""
        sizes = self._connection.execute(
            select(_table.c.sequence, func.length(_table.c.record).label("size"))
            .where(_table.c.inference_id.in_(list(inference_ids)))
            .order_by(_table.c.sequence.desc())
            .limit(most)
        )
        wanted = within(most_bytes, ((row.sequence, row.size) for row in sizes))
        rows = self._connection.execute(
            select(_table.c.record).where(_table.c.sequence.in_(wanted)).order_by(_table.c.sequence)
        )
        return [_decode(row.record) for row in rows]

    def in_order(self) -> Iterator[Reward]:
        """Iterate over all rewards in order of (decided_at, inference_id, revision)."""
        order = (_table.c.decided_at, _table.c.inference_id, _table.c.revision)
        for row in self._connection.execute(select(_table.c.record).order_by(*order)):
            yield _decode(row.record)


class Rewards(RewardsReader):
    """The rewards and their outbox, written by the scorer alone."""

    def put(self, rewards: Sequence[tuple[int, Reward]]) -> None:
        """Put (partition, reward) pairs into the outbox, in order. A revision that is there already stays as it is.

        Readers page by the sequence, so rewards must become visible in its order: a transaction that allocates numbers
        keeps others from it until it is over. So call this last."""
        if not rewards:
            return
        rows = [_row(partition, reward) for partition, reward in rewards]
        hold(self._connection, Lock.REWARDS)
        last = self._connection.execute(select(func.max(_table.c.sequence))).scalar() or 0
        for sequence, row in enumerate(rows, last + 1):
            row["sequence"] = sequence
        insert_new(self._connection, _table, rows)

    def mark_published(self, sequences: Iterable[int]) -> None:
        """Remove rewards from the outbox."""
        self._connection.execute(_PUBLISHED, {"values": list(sequences)})


def _row(partition: int, reward: Reward) -> dict[str, object]:
    return {
        "inference_id": reward.inference_id,
        "spec": reward.spec,
        "revision": reward.revision,
        "namespace": reward.namespace,
        "session_id": reward.session_id,
        "value": reward.value,
        "final": reward.final,
        "decided_at": to_micros(reward.decided_at),
        "published": False,
        "partition": partition,
        "record": _encode(reward),
    }
