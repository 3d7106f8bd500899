"""Everything that was ever appended to a topic: from the log, and from the archive what the log no longer has."""

import heapq
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice

from core.events import Topic
from core.ids import Namespace
from core.ports import Blobs, EventLog, Record, TopicPartition
from core.records.whole_log import read_whole
from ingest.archive.files import namespace_of, read_records
from ingest.archive.names import ArchiveFile, folder, parse, stretches

_BATCH = 512
logger = logging.getLogger(__name__)


@dataclass
class _Progress:
    """The progress of reading a partition in the order of offsets, and the offsets that were missing."""

    has_begun: bool
    """Whether what is not there is missed: all is asked for, or something was found that is."""
    next: int = 0
    missing: int = 0
    """Offsets between two wanted records that were in none."""
    missing_before: int = 0
    """The offset at which the last of them ends."""
    _gaps: int = 0
    _gaps_before: int = 0

    def cover(self, start: int, end: int) -> None:
        if self.has_begun and start > self.next:
            self._gaps += start - self.next
            self._gaps_before = start
        self.next = max(self.next, end)

    def want(self) -> None:
        """Note that the next record is one that was asked for, and so are all since the last such record."""
        self.has_begun = True
        if self._gaps:
            self.missing += self._gaps
            self.missing_before, self._gaps = self._gaps_before, 0


class History:
    """A topic's whole past, up to where the log ended when this was made; it can be read any number of times.

    Each record is read once, and those of a partition in order, whatever archive and retention do meanwhile. `begin`
    and `end` bound the time at which records were appended: from `begin` to before `end`. Raises LogUnavailable,
    NewerSchema."""

    def __init__(
        self,
        log: EventLog,
        archive: Blobs,
        topic: Topic,
        begin: datetime | None = None,
        end: datetime | None = None,
        namespace: Namespace | None = None,
    ) -> None:
        self._log, self._archive, self._topic = log, archive, topic
        self._begin, self._end, self._namespace = begin, end, namespace
        self._is_part = (begin, end, namespace) != (None, None, None)
        self._sources = [TopicPartition(topic, index) for index in range(log.partitions(topic))]
        self._ends = {source: log.end(source) for source in self._sources}
        self._read = {source: _Progress(not self._is_part) for source in self._sources}

    @property
    def missing(self) -> int:
        """Return how many records the last reading found neither in the log nor in the archive.

        Counted are those between the first and the last record of each partition that were asked for, or all. For one
        namespace, gaps inside an archived range are not noticed."""
        return sum(progress.missing for progress in self._read.values())

    @property
    def share(self) -> float:
        """Return which share of what is to be read has been read."""
        return sum(progress.next for progress in self._read.values()) / max(1, sum(self._ends.values()))

    def read(self) -> Iterator[list[Record]]:
        """Yield the records in batches."""
        self._read = {source: _Progress(not self._is_part) for source in self._sources}
        for records in read_whole(self._log, self._topic, self._starts(), self._ends):
            chosen: list[Record] = []
            for record in records:
                done = self._read[record.source].next
                if record.offset > done:  # the log has it no longer, or does since it was asked
                    yield chosen
                    yield from self._from_archive(record.source, done, record.offset)
                    chosen = []
                if self._take(record):
                    chosen.append(record)
            yield chosen
        for source, progress in self._read.items():
            if progress.next < self._ends[source]:
                yield from self._from_archive(source, progress.next, self._ends[source])
        self._conclude()

    def _starts(self) -> dict[TopicPartition, int]:
        if self._begin is None:
            return {source: self._log.earliest(source) for source in self._sources}
        return {source: self._log.offset_at(source, self._begin) for source in self._sources}

    def _from_archive(self, source: TopicPartition, start: int, end: int) -> Iterator[list[Record]]:
        for stretch, files in stretches(self._files()).items():
            if stretch.partition == source.partition and stretch.start < end and stretch.end > start:
                if self._namespace is not None:  # who else has records in the stretch is not looked at
                    self._read[source].cover(max(start, stretch.start), min(end, stretch.end))
                wanted = (file for file in files if self._namespace in (None, file.namespace))
                contents = (read_records(self._archive.get(file.path), file.path) for file in wanted)
                merged = heapq.merge(*contents, key=lambda record: record.offset)
                inside = (record for record in merged if start <= record.offset < end)
                while records := list(islice(inside, _BATCH)):
                    yield self._chosen(records)

    def _conclude(self) -> None:
        for source, progress in self._read.items():
            if not self._is_part:
                progress.cover(self._ends[source], self._ends[source])
                progress.want()
            if progress.missing:
                logger.warning(
                    "%s: %d records before offset %d are neither in log nor archive",
                    source,
                    progress.missing,
                    progress.missing_before,
                )

    def _files(self) -> list[ArchiveFile]:
        """List the files that may hold what is asked for.

        They are listed when needed, since retention goes on meanwhile."""
        files = (parse(self._topic, path) for path in self._archive.list(f"{folder(self._topic)}/"))
        return [file for file in files if self._may_have(file)]

    def _may_have(self, file: ArchiveFile) -> bool:
        if self._begin is not None and file.day < self._begin.astimezone(UTC).date():
            return False
        return self._end is None or file.day <= self._end.astimezone(UTC).date()

    def _chosen(self, records: Sequence[Record]) -> list[Record]:
        return [record for record in records if self._take(record)]

    def _take(self, record: Record) -> bool:
        progress, is_wanted = self._read[record.source], self._wants(record)
        progress.cover(record.offset, record.offset + 1)
        if is_wanted:
            progress.want()
        return is_wanted

    def _wants(self, record: Record) -> bool:
        if self._begin is not None and record.appended_at < self._begin:
            return False
        if self._end is not None and record.appended_at >= self._end:
            return False
        return self._namespace is None or namespace_of(record.event) == self._namespace
