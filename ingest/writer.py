"""The writer: copies turns and outcomes from the log into the store, each exactly once.

A batch's rows and its offsets are one transaction, so a crash repeats nothing and skips nothing; an event that is in
the log twice (a retried append) finds its own id in the store. Any number of writers share the log's partitions."""

import logging
import time
from collections.abc import Mapping, Sequence

from core import telemetry
from core.events import Completion, DeadLetter, Event, Outcome, SessionEnded, Topic
from core.ports import Clock, EventLog, Record, Store, TopicPartition
from core.settings import IngestSettings
from core.settings.stages import RECORD_ATTEMPTS
from core.stages.sources import SharedRecords
from core.stages.stage import Stage, until
from core.store.dead_letters import as_announced
from core.store.offsets import WRITER
from core.tracing import is_on, trace

GROUP = WRITER
_LAG_S = 1.0  # how often it is measured
logger = logging.getLogger(__name__)


class Writer(Stage):
    """A stage that copies the log to the store.

    It ends at NewerSchema (naming the record), and at LogError when the store belongs to another log."""

    def __init__(
        self,
        log: EventLog,
        store: Store,
        settings: IngestSettings,
        clock: Clock,
        record_attempts: int = RECORD_ATTEMPTS,
    ) -> None:
        super().__init__()
        self._log = log
        self._batch_records = settings.batch_records
        self._clock = clock
        self._announced: set[tuple[TopicPartition, int]] = set()  # dead letters that are not in the store yet
        self._committed: Mapping[TopicPartition, int] = {}
        self._next_lag_s = 0.0
        self._reads = False
        self._is_measured = False  # when nothing was left to read
        self.source = self._turns = SharedRecords(GROUP, [Topic.TURNS], log, store, clock, record_attempts)

    def room(self) -> int:
        return self._batch_records

    def handle(self, records: Sequence[Record]) -> None:
        self._reads = True
        turns = [record.event for record in records if isinstance(record.event, Completion)]
        outcomes = [record.event for record in records if isinstance(record.event, Outcome)]
        letters = self._announce([record for record in records if not is_usable(record.event)])
        with self._turns.writing(records) as work:
            new = work.turns.put(turns) + work.outcomes.put(outcomes)
            work.dead_letters.put(letters)
        self._announced.clear()
        telemetry.DUPLICATES.labels(topic=Topic.TURNS).inc(len(turns) + len(outcomes) - new)
        telemetry.DEAD_LETTERS.labels(topic=Topic.TURNS).inc(len(letters))
        self._trace(records)

    def _trace(self, records: Sequence[Record]) -> None:
        if is_on():
            now = self._clock.now()
            for record in records:
                if isinstance(record.event, Completion):
                    trace(record.event.inference_id, "store", record.appended_at, now)

    def tick(self) -> float:
        member, now_s = self._turns.member, time.monotonic()
        if member.offsets != self._committed:
            self._committed = dict(member.offsets)
            member.commit(self._committed)
        is_dry, self._reads = not self._reads, False
        if now_s >= self._next_lag_s or (is_dry and not self._is_measured):
            self._next_lag_s, self._is_measured = now_s + _LAG_S, is_dry
            telemetry.WRITER_LAG.set(sum(member.behind().values()))
        return until(self._next_lag_s)

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


def is_usable(event: Event | None) -> bool:
    """Return whether a record belongs in onward.turns.

    The end of a session concerns the scorer alone, and is no dead letter."""
    return isinstance(event, Completion | Outcome | SessionEnded)
