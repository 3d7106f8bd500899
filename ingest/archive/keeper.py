"""The keeper of the log: archives all that is there, then deletes what may go; now and again."""

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
    """A stage: a round every `interval_s`, the first at once. Raises NewerSchema, and LogError where the archive is not
    of this log; tries again where something is away or there is no room."""

    def __init__(
        self, log: EventLog, archiver: Archiver | None, retention: Retention | None, interval_s: float
    ) -> None:
        """None: that is not done."""
        self._log, self._archiver, self._retention = log, archiver, retention
        self._interval_s = interval_s
        self._next_s = 0.0
        self._closing = threading.Event()
        self._round: Iterator[int] | None = None
        self.archived = self.deleted = 0
        self.state = "ok"

    def step(self, timeout_s: float) -> int:
        """One stretch archived, or one partition's old records deleted, or a wait. Returns how many records."""
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
        """All that is to do now, a piece for each number of records."""
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
