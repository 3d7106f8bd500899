"""All that ever was in a topic: from the log, and from the archive what the log no longer has."""

import heapq
import logging
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from itertools import islice

from core.events import Topic
from core.ids import Namespace
from core.ports import Blobs, EventLog, Record, TopicPartition
from core.whole_log import read_whole
from ingest.archive_files import ArchiveFile, folder, namespace_of, parse, read_records, stretches

_BATCH = 512
logger = logging.getLogger(__name__)


class History:
    """Up to what is the log's end when this is made, as often as one likes: each record once, those of a partition in
    order, whatever archive and retention do meanwhile. `begin` and `end` bound the time at which records were appended:
    from `begin` to before `end`. Raises LogUnavailable, NewerSchema."""

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
        self._done = dict.fromkeys(self._sources, 0)
        self.missing = 0
        """Records that the last reading found in neither: of a period, in the midst of what it found in the log; of one
        namespace it cannot be said."""

    @property
    def share(self) -> float:
        """Of what is to be read: how much was."""
        return sum(self._done.values()) / max(1, sum(self._ends.values()))

    def read(self) -> Iterator[list[Record]]:
        """In batches."""
        self.missing = 0
        done = self._done = dict.fromkeys(self._sources, 0)
        for records in read_whole(self._log, self._topic, self._starts(), self._ends):
            for record in records:
                if record.offset > done[record.source]:  # the log has it no longer, or does since it was asked
                    counts = not self._is_part or (done[record.source] > 0 and self._is_of_time(record))
                    yield from self._from_archive(record.source, done[record.source], record.offset, counts)
                done[record.source] = record.offset + 1
            yield self._chosen(records)
        for source, offset in done.items():
            if offset < self._ends[source]:
                yield from self._from_archive(source, offset, self._ends[source], not self._is_part)

    def _starts(self) -> dict[TopicPartition, int]:
        if self._begin is None:
            return {source: self._log.earliest(source) for source in self._sources}
        return {source: self._log.offset_at(source, self._begin) for source in self._sources}

    def _from_archive(self, source: TopicPartition, start: int, end: int, counts: bool) -> Iterator[list[Record]]:
        """`counts`: whether what is not there either is missing."""
        found = 0
        for stretch, files in stretches(self._files()).items():
            if stretch.partition == source.partition and stretch.start < end and stretch.end > start:
                contents = (read_records(self._archive.get(file.path), file.path) for file in files)
                merged = heapq.merge(*contents, key=lambda record: record.offset)
                inside = (record for record in merged if start <= record.offset < end)
                while records := list(islice(inside, _BATCH)):
                    found += len(records)
                    self._done[source] = records[-1].offset + 1
                    yield self._chosen(records)
        if found < end - start and counts and self._namespace is None:
            missing = end - start - found
            self.missing += missing
            logger.warning("%s: %d records before offset %d are neither in log nor archive", source, missing, end)

    def _files(self) -> list[ArchiveFile]:
        """Those that may have what is asked for. Listed when they are needed: retention goes on meanwhile."""
        files = (parse(self._topic, path) for path in self._archive.list(f"{folder(self._topic)}/"))
        return [file for file in files if self._may_have(file)]

    def _may_have(self, file: ArchiveFile) -> bool:
        if self._namespace is not None and file.namespace != self._namespace:
            return False
        if self._begin is not None and file.day < self._begin.astimezone(UTC).date():
            return False
        return self._end is None or file.day <= self._end.astimezone(UTC).date()

    def _chosen(self, records: Sequence[Record]) -> list[Record]:
        return [record for record in records if self._wants(record)]

    def _wants(self, record: Record) -> bool:
        of_namespace = self._namespace is None or namespace_of(record.event) == self._namespace
        return of_namespace and self._is_of_time(record)

    def _is_of_time(self, record: Record) -> bool:
        if self._begin is not None and record.appended_at < self._begin:
            return False
        return self._end is None or record.appended_at < self._end
