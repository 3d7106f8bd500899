"""Restoring a backup's records in topics that nobody uses yet."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final, Protocol

from kafka import KafkaProducer

from core.codec import decode
from core.errors import Conflict, LogError, LogUnavailable, Undecodable
from core.events import Event
from core.ports import Record, TopicPartition
from core.settings import KafkaSettings
from ingest.kafka.clients import connected, explained, topic_name
from ingest.kafka.producer import producer_options
from ingest.kafka.reader import COMPACTED

_NOTHING: Final = b"-"  # the value, and the key, of what is deleted before anybody reads it
_UNKNOWN: Final = b"undecodable"
_AT_ONCE: Final = 10_000


class LogOffsets(Protocol):
    """The offsets of a log's partitions."""

    def end(self, partition: TopicPartition) -> int: ...

    def delete_before(self, partition: TopicPartition, offset: int) -> None: ...


def restore(
    settings: KafkaSettings, records: Sequence[Record], places: LogOffsets, key_of: Callable[[Event], bytes]
) -> None:
    """Append records at their own offsets, as the port describes; their times are those of now.

    Kafka gives offsets one after the other: below a partition's first record goes what is deleted at once. A gap that
    compaction left, where nothing can be deleted, is filled by repeating the record after it."""
    firsts: dict[TopicPartition, int] = {}
    for record in records:
        firsts.setdefault(record.source, record.offset)
    ends = {source: places.end(source) for source in firsts}
    for source, end in ends.items():
        if end > firsts[source]:
            raise Conflict(f"{source}: the log has records up to offset {end} already")
    begun = {source: firsts[source] for source, end in ends.items() if end == 0 and source.topic not in COMPACTED}
    skip_to(settings, begun, places)
    ends |= begun
    with _producing(settings) as producer:
        for record in records:
            for _ in range(ends[record.source], record.offset + 1):
                _send(settings, producer, record.source, record.raw, _key(record, key_of))
            ends[record.source] = record.offset + 1
    _check_ends(places, ends)


def skip_to(settings: KafkaSettings, offsets: Mapping[TopicPartition, int], places: LogOffsets) -> None:
    """Let the next records of partitions have these offsets, as the port describes."""
    ends = {source: end for source, offset in offsets.items() if (end := places.end(source)) < offset}
    if not ends:
        return
    with _producing(settings) as producer:
        for source, end in ends.items():
            for number in range(end, offsets[source]):
                _send(settings, producer, source, _NOTHING, _NOTHING)
                if number % _AT_ONCE == 0:  # what waits for long is given up
                    producer.flush()
    _check_ends(places, {source: offsets[source] for source in ends})
    for source in ends:
        places.delete_before(source, offsets[source])


@contextmanager
def _producing(settings: KafkaSettings) -> Iterator[KafkaProducer]:
    """Yield a producer; all that it was given has been sent, or has failed, at the end."""
    producer = connected(settings, KafkaProducer, **producer_options(settings))
    try:
        with explained():
            yield producer
            producer.flush()
    finally:
        producer.close()


def _send(settings: KafkaSettings, producer: Any, source: TopicPartition, value: bytes, key: bytes) -> None:
    producer.send(topic_name(settings, source.topic), value, key, partition=source.partition)


def _key(record: Record, key_of: Callable[[Event], bytes]) -> bytes:
    try:
        return key_of(decode(record.raw))
    except (Undecodable, LogError):
        return _UNKNOWN


def _check_ends(places: LogOffsets, ends: dict[TopicPartition, int]) -> None:
    """Raise LogUnavailable where not everything arrived, or somebody else wrote."""
    for source, end in ends.items():
        if (found := places.end(source)) != end:
            raise LogUnavailable(f"{source}: ends at offset {found} after restoring, not at {end}")
