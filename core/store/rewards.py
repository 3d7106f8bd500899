"""Rewards and their outbox: written with the ledger in one transaction, published to the log from here."""

from collections.abc import Iterable, Sequence

import msgspec
from sqlalchemy import Connection, func, select, update

from core.events import Reward
from core.ids import InferenceId, Namespace
from core.store.database import tables
from core.store.database.connections import to_micros
from core.store.database.locks import Lock, hold
from core.store.database.statements import Among, insert_new

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Reward).decode
_table = tables.rewards
_PUBLISHED = update(_table).where(Among(_table.c.sequence)).values(published=True)


def put_rewards(connection: Connection, rewards: Sequence[tuple[int, Reward]]) -> None:
    """(partition, reward) into the outbox, in order. A revision that is there already stays as it is.

    Readers page by the sequence, so rewards must become visible in its order: whoever draws numbers keeps others from
    it until the transaction is over. Do this last.
    """
    if not rewards:
        return
    rows = [_row(partition, reward) for partition, reward in rewards]
    hold(connection, Lock.REWARDS)
    last = connection.execute(select(func.max(_table.c.sequence))).scalar() or 0
    for sequence, row in enumerate(rows, last + 1):
        row["sequence"] = sequence
    insert_new(connection, _table, rows)


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


def unpublished(connection: Connection, partitions: Iterable[int], limit: int) -> list[tuple[int, Reward]]:
    """The oldest (sequence, reward) of these partitions of the turns that wait for the log."""
    rows = connection.execute(
        select(_table.c.sequence, _table.c.record)
        .where(tables.WAITS, _table.c.partition.in_(list(partitions)))
        .order_by(_table.c.sequence)
        .limit(limit)
    )
    return [(row.sequence, _decode(row.record)) for row in rows]


def mark_published(connection: Connection, sequences: Iterable[int]) -> None:
    """These left the outbox."""
    connection.execute(_PUBLISHED, {"values": list(sequences)})


def list_rewards(
    connection: Connection, namespace: Namespace, after_sequence: int, limit: int
) -> list[tuple[int, Reward]]:
    """(sequence, reward) in order of emission, from the next after `after_sequence`."""
    rows = connection.execute(
        select(_table.c.sequence, _table.c.record)
        .where(_table.c.namespace == namespace, _table.c.sequence > after_sequence)
        .order_by(_table.c.sequence)
        .limit(limit)
    )
    return [(row.sequence, _decode(row.record)) for row in rows]


def latest_rewards(
    connection: Connection, namespace: Namespace, before_sequence: int, limit: int
) -> list[tuple[int, Reward]]:
    """(sequence, reward), the newest first, of those before `before_sequence`."""
    rows = connection.execute(
        select(_table.c.sequence, _table.c.record)
        .where(_table.c.namespace == namespace, _table.c.sequence < before_sequence)
        .order_by(_table.c.sequence.desc())
        .limit(limit)
    )
    return [(row.sequence, _decode(row.record)) for row in rows]


def last_sequence(connection: Connection, namespace: Namespace) -> int:
    return connection.execute(select(func.max(_table.c.sequence)).where(_table.c.namespace == namespace)).scalar() or 0


def get_rewards(connection: Connection, inference_ids: Sequence[InferenceId]) -> list[Reward]:
    rows = connection.execute(
        select(_table.c.record).where(_table.c.inference_id.in_(list(inference_ids))).order_by(_table.c.sequence)
    )
    return [_decode(row.record) for row in rows]
