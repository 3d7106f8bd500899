"""Conversion of a log's bytes to records."""

from datetime import datetime

from core.codec import decode
from core.errors import NewerSchema, Undecodable
from core.events import Event, Topic
from core.ports import Record


def to_record(topic: Topic, partition: int, offset: int, appended_at: datetime, raw: bytes, log: str) -> Record:
    """Make a record; bytes that cannot be decoded are passed through raw.

    Raises NewerSchema naming the place in `log`."""
    event: Event | None = None
    error: str | None = None
    try:
        event = decode(raw)
    except NewerSchema as newer:
        raise NewerSchema(f"{log}: {topic}:{partition} offset {offset}: {newer}") from newer
    except Undecodable as undecodable:
        error = str(undecodable)
    return Record(
        topic=topic, partition=partition, offset=offset, appended_at=appended_at, raw=raw, event=event, error=error
    )
