"""Copy turns and rewards from the log into Parquet files, one range of offsets after another.

A range is read, its end is planned in the store, its files are written, and it is marked finished in the store: see
`core.store.archived`. After a kill anywhere in between, the next archiver finds the plan and makes the same files
again. So each record below the archive's position is in the archive once. Readers take from the archive what the log no
longer has (`ingest.archive.history`), and read each record once whatever happened."""

from collections.abc import Iterator
from typing import Final

from core import telemetry
from core.errors import LogError
from core.events import Topic
from core.ports import Blobs, EventLog, LogReader, Store, TopicPartition
from core.store.archived import Archived
from ingest.archive.files import ArchivedRange, RangeFiles, folder, parse

TOPICS: Final = (Topic.TURNS, Topic.REWARDS)
"""Topics that are archived, and deleted by age. The others are small, and their readers need all of their records."""
_BATCH: Final = 512
_POLL_S: Final = 0.5


class Archiver:
    """The archiver of one log; not thread-safe.

    It holds one range of `segment_bytes` in memory. Raises what the log, the store and blobs raise, and Fenced when
    another process archives the same log: make a new one then."""

    def __init__(self, log: EventLog, store: Store, blobs: Blobs, segment_bytes: int) -> None:
        self._log, self._store, self._blobs = log, store, blobs
        self._segment_bytes = segment_bytes
        self._readers: dict[Topic, LogReader] = {}

    def archive(self, source: TopicPartition) -> Iterator[int]:
        """Archive what a partition has by now; yield the number of records after each range."""
        target = self._log.end(source)
        known = self._known(source)
        lag = telemetry.ARCHIVE_LAG.labels(topic=source.topic, partition=source.partition)
        lag.set(target - known.next_offset)
        while known.next_offset < target:
            end, records = self._archive_stretch(source, known, target)
            known = Archived(end, None)
            telemetry.ARCHIVED.labels(topic=source.topic).inc(records)
            lag.set(target - end)
            yield records

    def _known(self, source: TopicPartition) -> Archived:
        with self._store.look() as view:
            known = view.archived.reached().get(source)
        if known is None:
            known = Archived(self._log.earliest(source), None)
            self._refuse_anothers(source)
            with self._store.work() as work:
                work.archived.begin(source, known.next_offset)
        return known

    def _refuse_anothers(self, source: TopicPartition) -> None:
        """Refuse files of a lost store or of another service: records would be in the archive twice."""
        for path in self._blobs.list(f"{folder(source.topic)}/"):
            if parse(source.topic, path).stretch.partition == source.partition:
                raise LogError(f"archive.url: {path} is there, and this store knows nothing of it; take another place")

    def _archive_stretch(self, source: TopicPartition, known: Archived, target: int) -> tuple[int, int]:
        """Return where the archived range ends, and how many records it has."""
        files, end = self._read(source, known, target)
        stretch = ArchivedRange(source.partition, known.next_offset, end)
        if known.planned_end is None:
            with self._store.work() as work:
                work.archived.plan(source, stretch.start, stretch.end)
        for path, content in files.close(stretch):
            self._blobs.put(path, content)
        with self._store.work() as work:
            work.archived.finish(source, stretch.start, stretch.end)
        return end, files.records

    def _read(self, source: TopicPartition, known: Archived, target: int) -> tuple[RangeFiles, int]:
        """Read up to the planned end, else to the target or until the range is full."""
        reader, files = self._reader(source.topic), RangeFiles(source)
        reader.seek(source, known.next_offset)
        end = known.planned_end or target
        while reader.position(source) < end:
            for record in reader.poll(_BATCH, _POLL_S):
                if record.source == source and record.offset < end:
                    files.add(record)
                    if known.planned_end is None and files.raw_bytes >= self._segment_bytes:
                        return files, record.offset + 1
        return files, end

    def _reader(self, topic: Topic) -> LogReader:
        """Open a reader at the end of all partitions but the one that is being archived.

        Few records arrive in the others meanwhile."""
        if topic not in self._readers:
            self._readers[topic] = reader = self._log.reader([topic])
            for source in reader.assignment():
                reader.seek(source, self._log.end(source))
        return self._readers[topic]

    def close(self) -> None:
        for reader in self._readers.values():
            reader.close()
        self._readers.clear()
