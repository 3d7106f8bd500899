"""The writer: turns and outcomes from the log into the store, each exactly once.

What a batch does to the store and how far the batch reaches are one transaction, so a crash repeats nothing and skips
nothing; and an event that stands in the log twice (a retried append) meets its own id in the store.
"""

import logging
import threading
from collections.abc import Sequence
from contextlib import ExitStack

from core import telemetry
from core.errors import LogError, Unavailable
from core.events import Completion, DeadLetter, Outcome, SessionEnded, Topic
from core.ports import Clock, EventLog, Record, Store, TopicPartition
from core.settings import IngestSettings
from core.store.dead_letters import put_dead_letters
from core.store.offsets import get_offsets, set_offsets
from core.store.turns import put_outcomes, put_turns

GROUP = "writer"
_RETRY_S = 0.5
logger = logging.getLogger(__name__)


class Writer:
    """A stage: one thread calls `step`. Raises NewerSchema (naming the record), Fenced, and LogError where the store
    is ahead of the log; waits while log or store are unavailable."""

    def __init__(self, log: EventLog, store: Store, settings: IngestSettings, clock: Clock) -> None:
        self._log = log
        self._store = store
        self._batch_records = settings.batch_records
        self._clock = clock
        self._closing = threading.Event()
        self._pending: list[Record] = []  # polled, not yet in the store
        self._consumer = log.consumer(GROUP, [Topic.TURNS])
        with ExitStack() as undo:
            undo.callback(self._consumer.close)
            self._resume()
            undo.pop_all()

    def _resume(self) -> None:
        """Go on where the store, not the group, says: only the store moved together with its contents."""
        with self._store.read() as connection:
            offsets = get_offsets(connection, GROUP)
        for source in self._consumer.assignment():
            offset, end = offsets.get(source, self._log.earliest(source)), self._log.end(source)
            if offset > end:
                raise LogError(f"the store has read {source} up to {offset}, but the log ends at {end}: not its log")
            self._consumer.seek(source, offset)

    def step(self, timeout_s: float) -> int:
        """Write what is there, or wait for it. Returns how many records are done."""
        try:
            self._pending = self._pending or self._consumer.poll(self._batch_records, timeout_s)
            done = len(self._pending)
            if done:
                offsets = self._write(self._pending)
                self._pending = []
                self._consumer.commit(offsets)  # for those who watch the group; a restart does not depend on it
            telemetry.WRITER_LAG.set(self._lag())
        except Unavailable as error:
            logger.warning("the writer waits: %s", error)
            self._closing.wait(max(timeout_s, _RETRY_S))
            return 0
        return done

    def _write(self, records: Sequence[Record]) -> dict[TopicPartition, int]:
        """Returns the offsets that the store now stands at."""
        turns = [record.event for record in records if isinstance(record.event, Completion)]
        outcomes = [record.event for record in records if isinstance(record.event, Outcome)]
        letters = [self._dead_letter(record) for record in records if not _usable(record)]
        if letters:  # announced first: a crash in between announces them again, never not at all
            self._log.append_blocking(Topic.DEAD_LETTERS, letters)
        offsets = {record.source: record.offset + 1 for record in records}
        with self._store.begin() as connection:
            new = put_turns(connection, turns) + put_outcomes(connection, outcomes)
            put_dead_letters(connection, letters)
            set_offsets(connection, GROUP, offsets, self._consumer.epoch)
        telemetry.DUPLICATES.labels(topic=Topic.TURNS).inc(len(turns) + len(outcomes) - new)
        telemetry.DEAD_LETTERS.labels(topic=Topic.TURNS).inc(len(letters))
        return offsets

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

    def _lag(self) -> int:
        return sum(self._log.end(source) - self._consumer.position(source) for source in self._consumer.assignment())

    def close(self) -> None:
        self._closing.set()
        self._consumer.close()


def _usable(record: Record) -> bool:
    """The end of a session concerns the scorer alone, and is no dead letter."""
    return isinstance(record.event, Completion | Outcome | SessionEnded)
