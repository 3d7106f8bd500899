"""Parquet files of the archive: each holds one range of a partition, one namespace and one day (UTC).

    archive/turns/namespace=acme/day=2026-11-21/0003-000000012000-000000012999.parquet

The name gives the partition and the range's first and last offset; which of its records are in the file follows from
the records alone. So writing a range again writes the same files. A record that cannot be decoded, or has no namespace,
is filed under Hive's name for null."""

import io
from collections.abc import Iterable, Iterator
from datetime import UTC, date, datetime
from typing import Any, Final
from urllib.parse import quote, unquote

import msgspec
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]

from core.events import Completion, Event, Outcome, Reward, Topic
from core.ids import Namespace
from core.ports import Record, TopicPartition
from ingest.records import to_record

ROOT: Final = "archive"
_NOBODY: Final = "__HIVE_DEFAULT_PARTITION__"
_SUFFIX: Final = ".parquet"
_ROW_GROUP_BYTES: Final = 4 << 20  # of raw records that wait for being written together
_ROWS_AT_ONCE: Final = 256

SCHEMA: Final = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("appended_at", pa.timestamp("us", "UTC")),
        ("namespace", pa.string()),
        ("kind", pa.string()),  # of the event, as its `type` says it; null: undecodable
        ("inference_id", pa.string()),
        ("session_id", pa.string()),
        ("raw", pa.binary()),  # the record as the log had it, byte for byte
    ]
)


class ArchivedRange(msgspec.Struct, frozen=True, order=True):
    """The offsets of a partition from `start` to before `end`."""

    partition: int
    start: int
    end: int


class ArchiveFile(msgspec.Struct, frozen=True, order=True):
    stretch: ArchivedRange
    topic: Topic
    namespace: Namespace | None
    day: date

    @property
    def path(self) -> str:
        one = self.stretch
        name = f"{one.partition:04d}-{one.start:012d}-{one.end - 1:012d}{_SUFFIX}"
        return f"{folder(self.topic)}/namespace={_quoted(self.namespace)}/day={self.day.isoformat()}/{name}"


def folder(topic: Topic) -> str:
    return f"{ROOT}/{topic.value.removeprefix('onward.')}"


def parse(topic: Topic, path: str) -> ArchiveFile:
    """Parse a file's name. Raises ValueError when it is no file of the archive."""
    namespace, day, name = path.removeprefix(f"{folder(topic)}/").split("/")
    partition, first, last = map(int, name.removesuffix(_SUFFIX).split("-"))
    quoted = namespace.removeprefix("namespace=")
    return ArchiveFile(
        stretch=ArchivedRange(partition, first, last + 1),
        topic=topic,
        namespace=None if quoted == _NOBODY else Namespace(unquote(quoted)),
        day=date.fromisoformat(day.removeprefix("day=")),
    )


def _quoted(namespace: Namespace | None) -> str:
    if namespace is None:
        return _NOBODY
    return quote(namespace, safe="").replace(_NOBODY, f"%5F{_NOBODY[1:]}")


def namespace_of(event: Event | None) -> Namespace | None:
    return getattr(event, "namespace", None)


# ------------------------------------------------------------------------------------------ writing


class RangeFiles:
    """The files of one range, in memory: compressed, except the last few megabytes.

    Their content follows from the records alone."""

    def __init__(self, source: TopicPartition) -> None:
        self._source = source
        self._waiting: dict[tuple[Namespace | None, date], list[Record]] = {}
        self._waiting_bytes = 0
        self._open: dict[tuple[Namespace | None, date], tuple[io.BytesIO, pq.ParquetWriter]] = {}
        self.records = 0
        self.raw_bytes = 0

    def add(self, record: Record) -> None:
        key = namespace_of(record.event), record.appended_at.astimezone(UTC).date()
        self._waiting.setdefault(key, []).append(record)
        self.records += 1
        self.raw_bytes += len(record.raw)
        self._waiting_bytes += len(record.raw)
        if self._waiting_bytes >= _ROW_GROUP_BYTES:
            self._write()

    def close(self, stretch: ArchivedRange) -> Iterator[tuple[str, bytes]]:
        """Return (path, content) of each file."""
        self._write()
        for (namespace, day), (content, writer) in sorted(self._open.items(), key=lambda each: str(each[0])):
            writer.close()
            file = ArchiveFile(stretch=stretch, topic=self._source.topic, namespace=namespace, day=day)
            yield file.path, content.getvalue()

    def _write(self) -> None:
        for key, records in self._waiting.items():
            if key not in self._open:
                content = io.BytesIO()
                self._open[key] = content, pq.ParquetWriter(content, SCHEMA, compression="zstd")
            self._open[key][1].write_table(pa.Table.from_pylist(list(map(to_row, records)), SCHEMA))
        self._waiting.clear()
        self._waiting_bytes = 0


def to_row(record: Record) -> dict[str, Any]:
    event = record.event
    return {
        "topic": record.topic.value,
        "partition": record.partition,
        "offset": record.offset,
        "appended_at": record.appended_at,
        "namespace": namespace_of(event),
        "kind": None if event is None else type(event).__struct_config__.tag,
        "inference_id": event.inference_id if isinstance(event, Completion | Outcome | Reward) else None,
        "session_id": getattr(event, "session_id", None),
        "raw": record.raw,
    }


# ------------------------------------------------------------------------------------------ reading


def read_records(content: bytes, name: str) -> Iterator[Record]:
    """Read a file's records in the order of their offsets. Raises NewerSchema as a log does."""
    for batch in pq.ParquetFile(pa.BufferReader(content)).iter_batches(_ROWS_AT_ONCE):
        yield from (_to_record(row, name) for row in batch.to_pylist())


def _to_record(row: dict[str, Any], name: str) -> Record:
    appended_at: datetime = row["appended_at"]
    return to_record(
        Topic(row["topic"]), row["partition"], row["offset"], appended_at.astimezone(UTC), row["raw"], name
    )


def stretches(files: Iterable[ArchiveFile]) -> dict[ArchivedRange, list[ArchiveFile]]:
    """Return the archived ranges in order."""
    found: dict[ArchivedRange, list[ArchiveFile]] = {}
    for file in sorted(files, key=lambda file: file.stretch):
        found.setdefault(file.stretch, []).append(file)
    return found
