"""Rewards and their outbox: written with the ledger in one transaction, published to the log from here."""

from collections.abc import Sequence

import msgspec
from sqlalchemy import Connection, func, select, update

from core import tables
from core.events import Reward
from core.ids import InferenceId, Namespace
from core.store.database import to_micros
from core.store.turns import insert_or_ignore

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Reward).decode


def put_rewards(connection: Connection, rewards: Sequence[Reward]) -> None:
    """Into the outbox, in order. A revision that is there already stays as it is."""
    if not rewards:
        return
    table = tables.rewards
    last = connection.execute(select(func.max(table.c.sequence))).scalar() or 0
    rows = [
        {
            "inference_id": reward.inference_id,
            "spec": reward.spec,
            "revision": reward.revision,
            "namespace": reward.namespace,
            "session_id": reward.session_id,
            "value": reward.value,
            "final": reward.final,
            "decided_at": to_micros(reward.decided_at),
            "sequence": sequence,
            "published": False,
            "record": _encode(reward),
        }
        for sequence, reward in enumerate(rewards, last + 1)
    ]
    connection.execute(insert_or_ignore(connection, table), rows)


def unpublished(connection: Connection, limit: int) -> list[tuple[int, Reward]]:
    """The oldest (sequence, reward) that wait for the log."""
    table = tables.rewards
    rows = connection.execute(
        select(table.c.sequence, table.c.record)
        .where(table.c.published.is_(False))
        .order_by(table.c.sequence)
        .limit(limit)
    )
    return [(row.sequence, _decode(row.record)) for row in rows]


def mark_published(connection: Connection, up_to_sequence: int) -> None:
    table = tables.rewards
    connection.execute(
        update(table).where(table.c.published.is_(False), table.c.sequence <= up_to_sequence).values(published=True)
    )


def list_rewards(
    connection: Connection, namespace: Namespace, after_sequence: int, limit: int
) -> list[tuple[int, Reward]]:
    """(sequence, reward) in order of emission, from the next after `after_sequence`."""
    table = tables.rewards
    rows = connection.execute(
        select(table.c.sequence, table.c.record)
        .where(table.c.namespace == namespace, table.c.sequence > after_sequence)
        .order_by(table.c.sequence)
        .limit(limit)
    )
    return [(row.sequence, _decode(row.record)) for row in rows]


def last_sequence(connection: Connection, namespace: Namespace) -> int:
    table = tables.rewards
    return connection.execute(select(func.max(table.c.sequence)).where(table.c.namespace == namespace)).scalar() or 0


def get_rewards(connection: Connection, inference_ids: Sequence[InferenceId]) -> list[Reward]:
    table = tables.rewards
    rows = connection.execute(
        select(table.c.record).where(table.c.inference_id.in_(list(inference_ids))).order_by(table.c.sequence)
    )
    return [_decode(row.record) for row in rows]
