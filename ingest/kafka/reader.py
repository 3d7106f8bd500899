"""Reading from Kafka."""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from kafka import KafkaConsumer
from kafka import TopicPartition as KafkaPartition
from kafka.util import Timer

from core import telemetry
from core.errors import NewerSchema, StoreUnavailable
from core.events import Topic
from core.ports import Record, TopicPartition
from core.settings import KafkaSettings
from ingest.kafka.clients import connected, explained, options, topic_name
from ingest.records import to_record
from ingest.sealing import Seals

COMPACTED: Final = frozenset({Topic.RELEASES})
JOIN_S: Final = 1.0
_FETCH_WAIT_MS: Final = 500
Found = Mapping[KafkaPartition, Sequence[Any]]
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
logger = logging.getLogger(__name__)


class RoundConsumer(KafkaConsumer):  # type: ignore[misc]
    """A consumer that goes through one round of a rebalance at a time.

    kafka-python's `poll` may go through both rounds in one call: partitions revoked in the first belong to another
    member after the second, before anybody could commit them. And a join whose end falls between two calls is started
    again, for the whole group: so `poll` waits for a join to end, up to `JOIN_S`."""

    def round(self, max_records: int, timeout_s: float) -> Found:
        if self.config["group_id"] is not None and self._coordinator.need_rejoin():
            self._coordinator.poll(timeout_ms=int(1000 * max(timeout_s, JOIN_S)))
            return {}
        found: Found = self._poll_once(Timer(int(1000 * timeout_s)), max_records)
        return found


class KafkaReader:
    """Implements core.ports.LogReader. It connects when first used."""

    def __init__(
        self,
        settings: KafkaSettings,
        topics: Sequence[Topic],
        count: Callable[[Topic], int],
        seals: Seals | None = None,
    ) -> None:
        """Make a reader. `count` returns a topic's number of partitions, and raises LogUnavailable."""
        self._seals = seals
        self._settings = settings
        self._topics = {topic_name(settings, topic): topic for topic in topics}
        self._count = count
        self._timeout_s = settings.client.delivery_timeout_s
        self._client: RoundConsumer | None = None
        self._closed = False
        self._positions: dict[TopicPartition, int] = {}  # what is handed out next
        self._newer: dict[TopicPartition, NewerSchema] = {}

    # ------------------------------------------------------------------------------------------ the port

    def assignment(self) -> frozenset[TopicPartition]:
        self._open()
        return frozenset(self._positions)

    def poll(self, max_records: int, timeout_s: float) -> list[Record]:
        """Return the next records. Takes longer than `timeout_s` while it connects or joins."""
        deadline_s = time.monotonic() + timeout_s
        client = self._open()
        while True:
            if self._newer:
                raise next(iter(self._newer.values()))
            with explained():
                found = client.round(max_records, max(0.0, deadline_s - time.monotonic()))
            records = self._take(client, self._after_round(client, found))
            if records or time.monotonic() >= deadline_s:
                return records

    def position(self, partition: TopicPartition) -> int:
        self._open()
        return self._positions[partition]

    def seek(self, partition: TopicPartition, offset: int) -> None:
        assert offset >= 0
        client = self._open()
        assert partition in self._positions, f"{partition} is not assigned"
        self._go_to(client, partition, offset)
        self._newer.pop(partition, None)

    def close(self) -> None:
        """Close the reader. Closing twice does nothing."""
        self._close(self._timeout_s)

    def _close(self, timeout_s: float) -> None:
        if not self._closed:
            self._closed = True
            if self._client is not None:
                self._client.close(autocommit=False, timeout_ms=int(1000 * timeout_s))

    # ------------------------------------------------------------------------------------------ opening

    def _open(self) -> RoundConsumer:
        """Connect. Raises LogUnavailable, LogError."""
        assert not self._closed, "used after close"
        if self._client is None:
            counts = {topic: self._count(topic) for topic in self._topics.values()}
            client = connected(self._settings, RoundConsumer, **self._options())
            with ExitStack() as undo, explained():
                undo.callback(client.close, autocommit=False, timeout_ms=0)
                self._begin(client, counts)
                undo.pop_all()
            self._client = client
        return self._client

    def _options(self) -> dict[str, Any]:
        return {
            **options(self._settings, self._timeout_s),
            "enable_auto_commit": False,
            "auto_offset_reset": "earliest",  # seen, counted and said by `_take`
            "fetch_max_wait_ms": min(_FETCH_WAIT_MS, int(500 * self._timeout_s)),
            "allow_auto_create_topics": False,
            "metrics_enabled": False,
        }

    def _begin(self, client: RoundConsumer, counts: Mapping[Topic, int]) -> None:
        partitions = self._all_of(counts)
        client.assign(partitions)
        earliest = client.beginning_offsets(partitions, timeout_ms=int(1000 * self._timeout_s))
        for partition in partitions:
            self._go_to(client, self._ours(partition), earliest[partition])

    def _all_of(self, counts: Mapping[Topic, int]) -> list[KafkaPartition]:
        return [self._theirs(TopicPartition(topic, index)) for topic in counts for index in range(counts[topic])]

    def _theirs(self, source: TopicPartition) -> KafkaPartition:
        return KafkaPartition(topic_name(self._settings, source.topic), source.partition)

    def _ours(self, partition: KafkaPartition) -> TopicPartition:
        return TopicPartition(self._topics[partition.topic], partition.partition)

    # ------------------------------------------------------------------------------------------ reading

    def _go_to(self, client: RoundConsumer, source: TopicPartition, offset: int) -> None:
        self._positions[source] = offset
        client.seek(self._theirs(source), offset)

    def _take(self, client: RoundConsumer, found: Found) -> list[Record]:
        """Return each partition's records up to the first of a newer schema, for which the next poll raises."""
        records: list[Record] = []
        raws = self._opened(client, found)
        for partition, fetched in found.items():
            source = self._ours(partition)
            self._notice_jump(source, fetched[0].offset)
            try:
                for one, raw in zip(fetched, raws[partition], strict=True):
                    records.append(self._record(source, one, raw))
                    self._positions[source] = one.offset + 1
            except NewerSchema as newer:
                self._newer[source] = newer
                self._go_to(client, source, self._positions[source])
        if not records:
            if self._newer:
                raise next(iter(self._newer.values()))
            self._notice_jumps(client)
        return records

    def _opened(self, client: RoundConsumer, found: Found) -> Mapping[KafkaPartition, Sequence[bytes]]:
        """Return the bytes of records. Raises StoreUnavailable where their keys are away: they come again then."""
        raws = {partition: [one.value or b"" for one in fetched] for partition, fetched in found.items()}
        if self._seals is None or not raws:
            return raws
        try:
            opened = iter(self._seals.opened([raw for its in raws.values() for raw in its]))
        except StoreUnavailable:
            for source in map(self._ours, found):
                self._go_to(client, source, self._positions[source])
            raise
        return {partition: [next(opened) for _ in its] for partition, its in raws.items()}

    def _record(self, source: TopicPartition, fetched: Any, raw: bytes) -> Record:
        appended_at = _EPOCH + timedelta(milliseconds=fetched.timestamp)
        return to_record(source.topic, source.partition, fetched.offset, appended_at, raw, "Kafka")

    def _notice_jump(self, source: TopicPartition, offset: int) -> None:
        """Notice that Kafka skipped offsets, because it no longer has the next ones."""
        expected = self._positions[source]
        if offset == expected:
            return
        self._positions[source] = offset
        if source.topic in COMPACTED and offset > expected:
            return
        telemetry.LOG_RESETS.labels(topic=source.topic).inc()
        if offset > expected:
            telemetry.LOG_SKIPPED.labels(topic=source.topic).inc(offset - expected)
            logger.error("%s: offsets %d to %d were dropped before they were read", source, expected, offset - 1)
        else:
            logger.error("%s: ends before offset %d: not the log it was; read again from %d", source, expected, offset)

    def _notice_jumps(self, client: RoundConsumer) -> None:
        """Notice positions that moved without any record: where all were dropped, or compacted away."""
        for source in self._positions:
            offset = client.position(self._theirs(source), timeout_ms=0)
            if offset is not None:
                self._notice_jump(source, offset)

    def _after_round(self, client: RoundConsumer, found: Found) -> Found:
        """Return which of a round's records count."""
        return found
