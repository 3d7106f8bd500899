"""The log's records in a backup: up to its end at one moment, each with its offset and the time of its appending."""

from collections.abc import Iterator, Mapping
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import Final

import msgspec

from core.clock import from_micros, to_micros
from core.events import Topic
from core.ports import EventLog, Record, TopicPartition
from onward.backups.pieces import PieceWriter, read_pieces

_BATCH: Final = 512
_POLL_S: Final = 1.0


class _Kept(msgspec.Struct, frozen=True, array_like=True):
    topic: Topic
    partition: int
    offset: int
    appended_at_us: int
    raw: bytes


def ends_of(log: EventLog) -> dict[TopicPartition, int]:
    """Return where each partition of each topic ends now. Raises LogUnavailable."""
    sources = [TopicPartition(topic, index) for topic in Topic for index in range(log.partitions(topic))]
    return {source: log.end(source) for source in sources}


def read_records(log: EventLog, ends: Mapping[TopicPartition, int]) -> Iterator[list[Record]]:
    """Yield the log's records up to these ends, in batches. Raises LogUnavailable, NewerSchema."""
    reader = log.reader(list(Topic))
    try:
        while any(reader.position(source) < end for source, end in ends.items()):
            yield [record for record in reader.poll(_BATCH, _POLL_S) if record.offset < ends[record.source]]
    finally:
        reader.close()


def keep_record(writer: PieceWriter, record: Record) -> None:
    writer.write(_Kept(record.topic, record.partition, record.offset, to_micros(record.appended_at), record.raw))


def kept_records(path: Path) -> Iterator[list[Record]]:
    """Yield the records of a backup, in batches, as they were read from the log."""
    kept = read_pieces(path, _Kept)
    while batch := [_record(each, from_micros(each.appended_at_us)) for each in islice(kept, _BATCH)]:
        yield batch


def _record(kept: _Kept, appended_at: datetime) -> Record:
    return Record(
        topic=kept.topic,
        partition=kept.partition,
        offset=kept.offset,
        appended_at=appended_at,
        raw=kept.raw,
        event=None,
    )
