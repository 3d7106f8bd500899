"""The Parquet files of the archive: what is in them. How they are named, `ingest.archive.names` says."""

import io
from collections.abc import Iterable, Iterator
from datetime import UTC, date, datetime
from itertools import islice
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from core.events import Completion, Event, Outcome, Reward, Topic
from core.ids import Namespace
from core.ports import Record, TopicPartition
from ingest.archive.names import ArchivedRange, ArchiveFile
from ingest.records import to_record

_COMPRESSION: Final = "zstd"
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


def namespace_of(event: Event | None) -> Namespace | None:
    return getattr(event, "namespace", None)


# ------------------------------------------------------------------------------------------ writing


class Files:
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
                self._open[key] = content, pq.ParquetWriter(content, SCHEMA, compression=_COMPRESSION)
            self._open[key][1].write_table(pa.Table.from_pylist(list(map(to_row, records)), SCHEMA))
        self._waiting.clear()
        self._waiting_bytes = 0


def written_again(content: bytes, raws: Iterable[bytes], name: str) -> bytes:
    """Write a file again with other raw records, one for each of its own, in their places."""
    rows = (to_row(_with(record, raw, name)) for record, raw in zip(read_records(content, name), raws, strict=True))
    written = io.BytesIO()
    with pq.ParquetWriter(written, SCHEMA, compression=_COMPRESSION) as writer:
        while some := list(islice(rows, _ROWS_AT_ONCE)):
            writer.write_table(pa.Table.from_pylist(some, SCHEMA))
    return written.getvalue()


def _with(record: Record, raw: bytes, name: str) -> Record:
    return to_record(record.topic, record.partition, record.offset, record.appended_at, raw, name)


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
