"""The scorer: turns and outcomes in, rewards out.

One store transaction holds a batch's changes of the ledger, its rewards (in the outbox) and the group's offsets,
fenced by the epoch; then the outbox goes to the log. A crash anywhere loses nothing and counts nothing twice in the
store; in the log a reward may stand twice, unique by (inference_id, spec, revision).

Time is the log's: see `scoring.book`. Only where nothing is left to read does the wall clock let waits end, half a
second late, so that a record on its way is seen first. A record that takes longer than that from its arrival at the
API to the log (a spool drained after an outage) may thus find its turn decided by default, and corrects it; scored
again from the log, the same turn is decided once. The last value is the same.
"""

import logging
import math
import time
from collections import deque
from collections.abc import Sequence
from datetime import timedelta
from statistics import fmean
from typing import Final

from core import telemetry
from core.errors import LogError, Unavailable
from core.events import Topic
from core.ports import REWARDS, Announcer, Clock, EventLog, Record, Store, TopicPartition
from core.reward_spec import RewardSpec
from core.settings import ScoringSettings
from core.store.offsets import get_offsets, set_offsets
from core.store.rewards import mark_published, unpublished
from scoring import ledger
from scoring.book import Book

GROUP: Final = "scorer"
GRACE: Final = timedelta(seconds=0.5)
_PUBLISH_BATCH: Final = 512
_EXPIRE_BATCH: Final = 512
logger = logging.getLogger(__name__)


class Scorer:
    """A stage: `step` until told to `close`. Not thread-safe."""

    def __init__(
        self,
        log: EventLog,
        store: Store,
        spec: RewardSpec,
        settings: ScoringSettings,
        clock: Clock,
        announcer: Announcer | None = None,
    ) -> None:
        """`announcer` is told of rewards once the store has them."""
        self._log = log
        self._store = store
        self._spec = spec
        self._settings = settings
        self._clock = clock
        self._announcer = announcer
        self._offsets: dict[TopicPartition, int] = {}  # of the partitions we own: what the store has
        self._next_batch_s = 0.0
        self._next_tick_s = 0.0
        self._outbox_waits = True  # a former life may have left some
        self._first_values: deque[float] = deque(maxlen=200)
        with store.read() as connection:
            telemetry.OPEN_TURNS.set(ledger.count_open(connection))
        self._consumer = log.consumer(GROUP, [Topic.TURNS], listener=self)

    def step(self, timeout_s: float) -> int:
        """Handle what is there; how many records it was. When the store or the log is away nothing is lost: the next
        step tries again. Raises NewerSchema, Fenced, and LogError when log and store are not of one piece."""
        try:
            records = self._poll(timeout_s)
            if records:
                self._score(records)
            if time.monotonic() >= self._next_tick_s:
                self._tick()
            if self._outbox_waits:
                self._publish()
        except Unavailable as error:
            logger.warning("scorer: %s; trying again", error)
            self._rewind()
            time.sleep(min(timeout_s, self._settings.tick_s))
            return 0
        return len(records)

    def close(self) -> None:
        self._consumer.close()

    # ------------------------------------------------------------------------------------------ reading

    def on_assigned(self, partitions: frozenset[TopicPartition]) -> None:
        """The offsets that count are the store's, not the log's."""
        with self._store.read() as connection:
            stored = get_offsets(connection, GROUP)
        for partition in partitions:
            earliest, end = self._log.earliest(partition), self._log.end(partition)
            offset = stored.get(partition, earliest)
            if not earliest <= offset <= end:
                raise LogError(f"{partition}: the store is at offset {offset}, the log holds {earliest} to {end}")
            self._offsets[partition] = offset
        self._rewind()

    def on_revoked(self, partitions: frozenset[TopicPartition]) -> None:
        """Nothing is pending between steps."""
        self.on_lost(partitions)

    def on_lost(self, partitions: frozenset[TopicPartition]) -> None:
        for partition in partitions:
            self._offsets.pop(partition, None)

    def _poll(self, timeout_s: float) -> list[Record]:
        """Batches follow one another by at least a tick, unless there is more than one batch to read: a transaction
        costs the same for one record as for twenty."""
        pause_s = min(self._next_batch_s - time.monotonic(), timeout_s)
        if pause_s > 0:
            time.sleep(pause_s)
        records = self._consumer.poll(self._settings.batch_records, timeout_s)
        if records and len(records) < self._settings.batch_records:
            self._next_batch_s = time.monotonic() + self._settings.tick_s
        return records

    def _rewind(self) -> None:
        for partition, offset in self._offsets.items():
            self._consumer.seek(partition, offset)

    # ------------------------------------------------------------------------------------------ scoring

    def _score(self, records: Sequence[Record]) -> None:
        offsets = self._offsets | {record.source: record.offset + 1 for record in records}
        book = Book(self._spec)
        with self._store.begin() as connection:
            book.take(connection, records)
            set_offsets(connection, GROUP, offsets, self._consumer.epoch)
        self._offsets = offsets
        self._count(book)

    def _tick(self) -> None:
        """Let time pass in the partitions that are read to their end. The moment is taken before looking."""
        self._next_tick_s = time.monotonic() + self._settings.tick_s
        moment = self._clock.now() - GRACE
        behind = {source: self._log.end(source) - offset for source, offset in self._offsets.items()}
        telemetry.SCORER_LAG.set(sum(behind.values()))
        until = {source.partition: moment for source, lag in behind.items() if lag == 0}
        with self._store.read() as connection:
            due = ledger.due_turns(connection, until, _EXPIRE_BATCH)
        if not due:
            return
        if len(due) == _EXPIRE_BATCH:  # no further than these, and soon again
            assert due[-1].due_at is not None
            until = dict.fromkeys(until, due[-1].due_at)
            self._next_tick_s = 0.0
        book = Book(self._spec)
        with self._store.begin() as connection:
            book.let_pass(connection, until)
            set_offsets(connection, GROUP, self._offsets, self._consumer.epoch)  # fences
        self._count(book)

    def _count(self, book: Book) -> None:
        telemetry.OPEN_TURNS.inc(book.newly_open)
        for reward in book.rewards:
            telemetry.REWARDS.labels(kind="revision" if reward.revision else "first").inc()
            if not reward.revision:
                self._first_values.append(reward.value)
        if book.rewards:
            self._outbox_waits = True
            if self._announcer is not None:
                self._announcer.announce(REWARDS)
            telemetry.REWARD_VALUE.set(fmean(self._first_values) if self._first_values else math.nan)

    # ------------------------------------------------------------------------------------------ publishing

    def _publish(self) -> None:
        """The outbox to the log, at least once."""
        while self._outbox_waits:
            with self._store.read() as connection:
                waiting = unpublished(connection, _PUBLISH_BATCH)
            if waiting:
                self._log.append_blocking(Topic.REWARDS, [reward for _, reward in waiting])
                with self._store.begin() as connection:
                    mark_published(connection, waiting[-1][0])
            self._outbox_waits = len(waiting) == _PUBLISH_BATCH
