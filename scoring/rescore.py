"""Scoring a whole past again, under any spec, into a store of its own."""

import logging
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Final

from core.clock import ManualClock
from core.events import Completion, Outcome, Reward, SessionEnded
from core.ports import Record, Store
from core.records.handling import take_all, words_of
from core.reward_spec import RewardSpec
from scoring.ledger.session_cache import SessionCache
from scoring.ledger.transaction import LedgerTransaction

_END_OF_TIME: Final = datetime(9999, 1, 1, tzinfo=UTC)
logger = logging.getLogger(__name__)


def rescore(
    batches: Iterable[Sequence[Record]],
    spec: RewardSpec,
    store: Store,
    clock: ManualClock,
    until: datetime | None = None,
) -> Iterator[Reward]:
    """Yield all rewards of these turns and outcomes, in order of (decided_at, inference_id, revision).

    Records of a partition come in order; how they are batched, and in which order partitions come, does not matter.

    The same records and spec yield the same rewards, byte for byte; they are those of the live scorer when `until` is
    the moment up to which it let waits end. With `until` None all waits end, as if nobody ever spoke again. `store`
    must hold no ledger; `clock` follows the records. Raises StoreUnavailable, and what reading them raises."""
    with store.look() as view:
        assert view.ledger.is_empty(), "scoring anew needs a store of its own"
    partitions = _read_all(batches, spec, store, clock)
    transaction = LedgerTransaction(spec)
    with store.work() as work:
        transaction.let_pass(work, dict.fromkeys(partitions, until or _END_OF_TIME))
    if until is not None:
        clock.advance_to(until)
    with store.look() as view:
        yield from view.rewards.in_order()


def _read_all(batches: Iterable[Sequence[Record]], spec: RewardSpec, store: Store, clock: ManualClock) -> set[int]:
    """Score all records; return the partitions they were in."""
    partitions, cache = set(), SessionCache()
    for records in batches:
        take_all(records, partial(_take, spec, store, cache), _pass_over, 1)
        for record in records:
            partitions.add(record.partition)
            if isinstance(record.event, Completion | Outcome | SessionEnded):
                clock.advance_to(record.event.received_at)
    return partitions


def _take(spec: RewardSpec, store: Store, cache: SessionCache, records: Sequence[Record]) -> None:
    transaction = LedgerTransaction(spec, cache)
    with store.work() as work:
        transaction.take(work, records)
    cache.put(transaction.sessions)


def _pass_over(record: Record, failure: Exception) -> None:
    """Skip a record that cannot be scored, as the live scorer does."""
    logger.warning("%s offset %d is passed over: %s", record.source, record.offset, words_of(failure))
