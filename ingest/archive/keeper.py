"""The stage that archives the log and then deletes what is no longer needed, at intervals."""

import logging
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Final

from core.errors import Fenced, Unavailable
from core.ports import EventLog, TopicPartition
from ingest.archive.archive import TOPICS, Archiver
from ingest.archive.retention import Retention

_RETRY_S: Final = 5.0
logger = logging.getLogger(__name__)


class Keeper:
    """A stage that works every `interval_s`, and at once when it starts.

    Raises NewerSchema, and LogError when the archive belongs to another log; it tries again when something is
    unreachable or the disk is full."""

    def __init__(
        self, log: EventLog, archiver: Archiver | None, retention: Retention | None, interval_s: float
    ) -> None:
        """Make the stage; whichever part is None is not done."""
        self._log, self._archiver, self._retention = log, archiver, retention
        self._interval_s = interval_s
        self._next_s = 0.0
        self._closing = threading.Event()
        self._round: Iterator[int] | None = None
        self.archived = self.deleted = 0
        self.state = "ok"

    def step(self, timeout_s: float) -> int:
        """Archive one range, or delete one partition's old records, or wait. Return how many records it was."""
        wait_s = self._next_s - time.monotonic()
        if self._round is None and wait_s > 0:
            self._closing.wait(min(wait_s, timeout_s))
            return 0
        self._round = self._round or self.round()
        try:
            records = next(self._round, None)
        except (Unavailable, Fenced, OSError) as error:
            logger.warning("the keeper of the log waits: %s", error)
            self._rest(_RETRY_S, str(error))
            return 0
        if records is None:
            self._rest(self._interval_s, "ok")
        return records or 0

    def _rest(self, wait_s: float, state: str) -> None:
        self._round, self.state = None, state
        self._next_s = time.monotonic() + wait_s

    def round(self) -> Iterator[int]:
        """Do all that is due now; yield the number of records of each piece of work."""
        sources = self._sources()
        if self._archiver is not None:
            yield from self._archive(self._archiver, sources)
        if self._retention is not None:
            for source in sources:
                deleted = self._retention.delete(source)
                self.deleted += deleted
                yield deleted

    def _archive(self, archiver: Archiver, sources: Sequence[TopicPartition]) -> Iterator[int]:
        try:
            for source in sources:
                for records in archiver.archive(source):
                    self.archived += records
                    yield records
        finally:
            archiver.close()

    def _sources(self) -> list[TopicPartition]:
        return [TopicPartition(topic, index) for topic in TOPICS for index in range(self._log.partitions(topic))]

    def close(self) -> None:
        self._closing.set()
        if self._archiver is not None:
            self._archiver.close()  # what was read is read again
