"""The writer: copies turns and outcomes from the log into the store, each exactly once.

A batch's rows and its offsets are one transaction, so a crash repeats nothing and skips nothing; an event that is in
the log twice (a retried append) finds its own id in the store. Any number of writers share the log's partitions."""

import logging
import threading
import time
from collections.abc import Sequence

from core import telemetry
from core.errors import Fenced, Unavailable
from core.events import Completion, DeadLetter, Event, Outcome, SessionEnded, Topic
from core.ports import Clock, EventLog, Record, Store, TopicPartition
from core.records.handling import Culprits
from core.records.membership import Membership
from core.settings import IngestSettings
from core.settings.stages import RECORD_ATTEMPTS
from core.store.dead_letters import as_announced
from core.store.offsets import WRITER

GROUP = WRITER
_RETRY_S = 0.5
_LAG_S = 1.0  # how often it is measured while there is something to do
logger = logging.getLogger(__name__)


class Writer:
    """A stage that copies the log to the store; one thread calls `step`.

    Raises NewerSchema (naming the record), and LogError when the store belongs to another log. It waits while log or
    store are unreachable, and joins again when another writer took its place."""

    def __init__(
        self,
        log: EventLog,
        store: Store,
        settings: IngestSettings,
        clock: Clock,
        record_attempts: int = RECORD_ATTEMPTS,
    ) -> None:
        self._log = log
        self._batch_records = settings.batch_records
        self._clock = clock
        self._closing = threading.Event()
        self._announced: set[tuple[TopicPartition, int]] = set()  # dead letters that are not in the store yet
        self._next_lag_s = 0.0
        self._member = Membership(log, store, GROUP, [Topic.TURNS])
        self._culprits = Culprits(GROUP, log, store, clock, record_attempts)

    def step(self, timeout_s: float) -> int:
        """Write the waiting records, or wait for some. Return how many records are done."""
        try:
            records = self._member.poll(self._batch_records, timeout_s)
            if records:
                self._culprits.find(records, self._write, self._member.writing)
                self._member.commit({record.source: record.offset + 1 for record in records})
            if not records or time.monotonic() >= self._next_lag_s:
                self._next_lag_s = time.monotonic() + _LAG_S
                telemetry.WRITER_LAG.set(sum(self._member.behind().values()))
        except (Unavailable, Fenced) as error:
            logger.warning("the writer waits: %s", error)
            self._member.recover(error)
            self._closing.wait(max(timeout_s, _RETRY_S))
            return 0
        return len(records)

    def _write(self, records: Sequence[Record]) -> None:
        turns = [record.event for record in records if isinstance(record.event, Completion)]
        outcomes = [record.event for record in records if isinstance(record.event, Outcome)]
        letters = self._announce([record for record in records if not is_usable(record.event)])
        with self._member.writing({record.source: record.offset + 1 for record in records}) as work:
            new = work.turns.put(turns) + work.outcomes.put(outcomes)
            work.dead_letters.put(letters)
        self._announced.clear()
        telemetry.DUPLICATES.labels(topic=Topic.TURNS).inc(len(turns) + len(outcomes) - new)
        telemetry.DEAD_LETTERS.labels(topic=Topic.TURNS).inc(len(letters))

    def _announce(self, records: Sequence[Record]) -> list[DeadLetter]:
        """Announce dead letters before they are stored: after a crash in between this is repeated, never left out."""
        letters = {(record.source, record.offset): self._dead_letter(record) for record in records}
        news = [letter for place, letter in letters.items() if place not in self._announced]
        self._log.append_blocking(
            Topic.DEAD_LETTERS, [as_announced(letter, self._log.max_record_bytes) for letter in news]
        )
        self._announced |= letters.keys()
        return list(letters.values())

    def _dead_letter(self, record: Record) -> DeadLetter:
        reason = record.error or f"a {type(record.event).__name__} does not belong into {record.topic}"
        logger.error("%s offset %d is set aside: %s", record.source, record.offset, reason)
        return DeadLetter(
            topic=record.topic,
            partition=record.partition,
            offset=record.offset,
            reason=reason,
            raw=record.raw,
            at=self._clock.now(),
        )

    def close(self) -> None:
        self._closing.set()
        self._member.close()


def is_usable(event: Event | None) -> bool:
    """Return whether a record belongs in onward.turns.

    The end of a session concerns the scorer alone, and is no dead letter."""
    return isinstance(event, Completion | Outcome | SessionEnded)
