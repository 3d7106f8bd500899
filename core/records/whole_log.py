"""Reading of a topic from its first record to its present end, for those who work through all of it."""

from collections.abc import Iterator, Mapping
from typing import Final

from core.events import Topic
from core.ports import EventLog, Record, TopicPartition

_BATCH: Final = 512
_POLL_S: Final = 1.0


def read_whole(
    log: EventLog,
    topic: Topic,
    starts: Mapping[TopicPartition, int] | None = None,
    ends: Mapping[TopicPartition, int] | None = None,
) -> Iterator[list[Record]]:
    """Yield the topic's records in batches, from `starts` to `ends`, or from its first record to its present end.

    Waits while the log is unavailable. Leaves no trace in its groups. Raises LogUnavailable, NewerSchema."""
    reader = log.reader([topic])
    try:
        for source, offset in (starts or {}).items():
            reader.seek(source, offset)
        ends = ends or {source: log.end(source) for source in reader.assignment()}
        while any(reader.position(source) < end for source, end in ends.items()):
            yield [record for record in reader.poll(_BATCH, _POLL_S) if record.offset < ends[record.source]]
    finally:
        reader.close()
