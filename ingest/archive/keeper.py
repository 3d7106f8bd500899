"""The stage that archives the log and then deletes what is no longer needed, at intervals."""

import time
from collections.abc import Iterator, Sequence

from core.errors import Fenced, Unavailable
from core.ports import EventLog, TopicPartition
from core.stages.stage import OK, Stage, until
from ingest.archive.archive import TOPICS, Archiver
from ingest.archive.retention import Retention


class Keeper(Stage):
    """A stage that archives and deletes: a round every `interval_s`, the first at once.

    It ends at NewerSchema, and at LogError when the archive belongs to another log; when there is no room it tries
    again."""

    def __init__(
        self, log: EventLog, archiver: Archiver | None, retention: Retention | None, interval_s: float
    ) -> None:
        """None: that is not done."""
        super().__init__()
        self._log, self._archiver, self._retention = log, archiver, retention
        self._interval_s = interval_s
        self._next_s = 0.0
        self._round: Iterator[int] | None = None
        self._fault = OK
        self.archived = self.deleted = 0

    @property
    def state(self) -> str:
        return self._fault

    def tick(self) -> float:
        """Archive one stretch, or delete one partition's old records."""
        if self._round is None and time.monotonic() < self._next_s:
            return until(self._next_s)
        self._round = self._round or self.round()
        try:
            records = next(self._round, None)
        except OSError as error:
            raise Unavailable(f"the archive: {error}") from error
        self._fault = OK
        if records is not None:
            return 0.0
        self._round, self._next_s = None, time.monotonic() + self._interval_s
        return until(self._next_s)

    def recover(self, error: Unavailable | Fenced) -> None:
        """Begin the round anew."""
        self._round, self._fault = None, str(error)

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
        if self._archiver is not None:
            self._archiver.close()  # what was read is read again
