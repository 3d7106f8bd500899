"""A whole log scored anew, under any spec, into a store of its own."""

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Final

import msgspec
from sqlalchemy import select

from core import tables
from core.clock import ManualClock
from core.events import Completion, Outcome, Reward, SessionEnded, Topic
from core.ports import EventLog, Store
from core.reward_spec import RewardSpec
from core.whole_log import read_whole
from scoring import ledger
from scoring.book import Book

_END_OF_TIME: Final = datetime(9999, 1, 1, tzinfo=UTC)
_decode = msgspec.msgpack.Decoder(Reward).decode


def rescore(
    log: EventLog, spec: RewardSpec, store: Store, clock: ManualClock, until: datetime | None = None
) -> Iterator[Reward]:
    """All rewards that the turns and outcomes now in the log make, in order of (decided_at, inference_id, revision).

    The same log and spec yield the same rewards, byte for byte; they are those of the live scorer when `until` is the
    moment up to which it let waits end. With `until` None all waits end, as if nobody ever spoke again. `store` must
    hold no ledger; `clock` follows the log. Raises NewerSchema, LogUnavailable, StoreUnavailable.
    """
    with store.read() as connection:
        assert ledger.is_empty(connection), "scoring anew needs a store of its own"
    _read_all(log, spec, store, clock)
    book = Book(spec)
    with store.begin() as connection:
        book.let_pass(connection, dict.fromkeys(range(log.partitions(Topic.TURNS)), until or _END_OF_TIME))
    if until is not None:
        clock.advance_to(until)
    yield from _in_order(store)


def _read_all(log: EventLog, spec: RewardSpec, store: Store, clock: ManualClock) -> None:
    for records in read_whole(log, Topic.TURNS):
        book = Book(spec)
        with store.begin() as connection:
            book.take(connection, records)
        for record in records:
            if isinstance(record.event, Completion | Outcome | SessionEnded):
                clock.advance_to(record.event.received_at)


def _in_order(store: Store) -> Iterator[Reward]:
    table = tables.rewards
    order = (table.c.decided_at, table.c.inference_id, table.c.revision)
    with store.read() as connection:
        for row in connection.execute(select(table.c.record).order_by(*order)):
            yield _decode(row.record)
