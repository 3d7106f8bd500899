"""The event log on Kafka."""

import asyncio
from collections.abc import Sequence
from concurrent.futures import Future
from datetime import datetime
from typing import Final

from core.codec import encode
from core.errors import LogUnavailable, TooLarge
from core.events import (
    Alarm,
    Completion,
    DeadLetter,
    Event,
    Outcome,
    PolicyVersion,
    Release,
    Reward,
    SessionEnded,
    Topic,
)
from core.ports import Consumer, LogReader, Position, RebalanceListener, Record, TopicPartition
from core.settings import KafkaSettings
from ingest.kafka.consumer import KafkaMember
from ingest.kafka.inquiry import Inquiry
from ingest.kafka.producer import Appends, Outgoing
from ingest.kafka.reader import KafkaReader
from ingest.kafka.restoring import restore, skip_to
from ingest.routing import partition_of

_GRACE_S: Final = 1.0  # Kafka's own clock says first that a delivery took too long
_PART: Final = 500  # records of one append that are under way at once


class KafkaEventLog:
    """Implements core.ports.EventLog. It connects in the background, at the start and after each outage.

    Until it is connected, and while brokers are unreachable, it raises LogUnavailable."""

    def __init__(self, settings: KafkaSettings) -> None:
        self._settings = settings
        self._appends = Appends(settings)
        self._inquiry = Inquiry(settings)

    @property
    def max_record_bytes(self) -> int:
        return self._settings.topics.max_record_bytes

    # ------------------------------------------------------------------------------------------ appending

    async def append(self, topic: Topic, event: Event) -> Position:
        waiter: asyncio.Future[list[Position]] = asyncio.get_running_loop().create_future()
        self._appends.submit(topic, [self._outgoing(topic, event)], waiter)
        try:
            async with asyncio.timeout(self._settings.client.delivery_timeout_s + _GRACE_S):
                return (await waiter)[0]
        except TimeoutError as error:
            raise self._overdue() from error

    def append_blocking(self, topic: Topic, events: Sequence[Event]) -> list[Position]:
        records = [self._outgoing(topic, event) for event in events]
        positions: list[Position] = []
        try:
            while len(positions) < len(records):  # what takes long as a whole need not be late
                positions += self._append_part(topic, records[len(positions) : len(positions) + _PART])
        except LogUnavailable as error:
            if not positions:
                raise
            raise LogUnavailable(f"{error}; {len(positions)} of {len(records)} were appended before") from error
        return positions

    def _append_part(self, topic: Topic, records: Sequence[Outgoing]) -> list[Position]:
        waiter: Future[list[Position]] = Future()
        self._appends.submit(topic, records, waiter)
        try:
            return waiter.result(self._settings.client.delivery_timeout_s + _GRACE_S)
        except TimeoutError as error:
            raise self._overdue() from error

    def _outgoing(self, topic: Topic, event: Event) -> Outgoing:
        raw = encode(event)
        if len(raw) > self._settings.topics.max_record_bytes:
            most = self._settings.topics.max_record_bytes
            said = f"a record of {len(raw)} bytes; kafka.topics.max_record_bytes is {most}"
            raise TooLarge(said, code="body_too_large")
        return Outgoing(partition_of(event, self.partitions(topic)), key_of(event), raw)

    def _overdue(self) -> LogUnavailable:
        seconds = self._settings.client.delivery_timeout_s
        return LogUnavailable(f"Kafka took more than {seconds:g} s; whether this was appended is unknown")

    # ------------------------------------------------------------------------------------------ reading

    def consumer(self, group: str, topics: Sequence[Topic], listener: RebalanceListener | None = None) -> Consumer:
        return KafkaMember(self._settings, group, topics, self.partitions, listener)

    def reader(self, topics: Sequence[Topic]) -> LogReader:
        return KafkaReader(self._settings, topics, self.partitions)

    def partitions(self, topic: Topic) -> int:
        return self._appends.partitions(topic)

    def earliest(self, partition: TopicPartition) -> int:
        return self._inquiry.earliest(partition)

    def end(self, partition: TopicPartition) -> int:
        return self._inquiry.end(partition)

    def offset_at(self, partition: TopicPartition, moment: datetime) -> int:
        return self._inquiry.offset_at(partition, moment)

    def committed(self, group: str, partition: TopicPartition) -> int | None:
        return self._inquiry.committed(group, partition)

    def delete_before(self, partition: TopicPartition, offset: int) -> None:
        self._inquiry.delete_before(partition, offset)

    def restore(self, records: Sequence[Record]) -> None:
        restore(self._settings, records, self, key_of)

    def skip_to(self, partition: TopicPartition, offset: int) -> None:
        skip_to(self._settings, {partition: offset}, self)

    def close(self) -> None:
        """Close it; readers and consumers are closed by those who made them. Closing twice does nothing."""
        self._appends.close()
        self._inquiry.close()


def key_of(event: Event) -> bytes:
    """Return what a record is about: its session or version. Compaction keeps the latest record of each key."""
    match event:
        case Completion() | SessionEnded() | Reward():
            key: str = event.session_id
        case Outcome():
            key = event.session_id or event.inference_id or ""
        case PolicyVersion():
            key = str(event.version)
        case Release():
            key = f"{event.cluster}/{event.version}"
        case Alarm():
            key = event.monitor
        case DeadLetter():
            key = f"{event.topic}:{event.partition}"
    return key.encode()
