"""Appending to Kafka: one idempotent producer, made and replaced by a thread of its own.

kafka-python's producer waits for brokers in its constructor, may wait for metadata in `send`, and buffers without
bound; none of that may happen on an event loop. So appends are counted and queued here, and the thread passes them
on."""

import logging
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any, Final

import msgspec
from kafka import KafkaProducer
from kafka.errors import KafkaError, KafkaTimeoutError

from core import telemetry
from core.errors import LogError, LogUnavailable
from core.events import Topic
from core.ports import Position
from core.settings import KafkaSettings
from ingest.kafka.clients import connected, explained, options, topic_name
from ingest.settling import Settler, Waiter

_FIRST_RETRY_S: Final = 0.1
_LAST_RETRY_S: Final = 2.0
_BATCH_BYTES: Final = 1 << 18
_LOOK_S: Final = 0.5
_GRACE_S: Final = 1.0
_HEADROOM_BYTES: Final = 1 << 14  # of a record: what Kafka puts around it
logger = logging.getLogger(__name__)


class Outgoing(msgspec.Struct, frozen=True):
    partition: int
    key: bytes
    raw: bytes


class _Append:
    """Records of one topic that are acknowledged together."""

    def __init__(
        self, topic: Topic, records: Sequence[Outgoing], waiter: Waiter[list[Position]], give_up_s: float
    ) -> None:
        self.topic, self.records, self.waiter = topic, records, waiter
        self.give_up_s = give_up_s  # monotonic: not sent any more after that
        self.size = sum(len(record.raw) + len(record.key) for record in records)
        self.left = len(records)
        self.positions: dict[int, Position] = {}  # by the place in `records`
        self.error: Exception | None = None


class Appends:
    """The queue of appends; thread-safe. `submit` never waits."""

    def __init__(self, settings: KafkaSettings) -> None:
        self._settings = settings
        self._settler = Settler[list[Position]]()
        self._queue: SimpleQueue[_Append | None] = SimpleQueue()  # None: look up, something has happened
        self._lock = threading.Lock()  # guards what follows
        self._bytes = 0
        self._under_way: dict[_Append, None] = {}  # in order of submission
        self._away: str | None = "Kafka: not connected yet"  # why nothing is taken
        self._closed = False
        self._partitions: dict[Topic, int] = {}
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="kafka-appends", daemon=True)
        self._thread.start()

    def partitions(self, topic: Topic) -> int:
        """Return the number of partitions. Raises LogUnavailable until a broker has said it."""
        count = self._partitions.get(topic)
        if count is None:
            raise LogUnavailable(self._away or "the log is closed")
        return count

    def submit(self, topic: Topic, records: Sequence[Outgoing], waiter: Waiter[list[Position]]) -> None:
        """Queue records. Raises LogUnavailable when the buffer is full: then nothing was appended.

        An append larger than the whole buffer is accepted when nothing else waits."""
        append = _Append(topic, records, waiter, time.monotonic() + self._settings.client.delivery_timeout_s)
        with self._lock:
            if self._closed:
                raise LogUnavailable("the log is closed")
            if self._away is not None:
                raise LogUnavailable(self._away)
            if self._bytes and self._bytes + append.size > self._settings.client.buffer_bytes:
                raise LogUnavailable(f"{self._bytes} bytes wait for Kafka (kafka.client.buffer_bytes)")
            self._count(append.size)
            self._under_way[append] = None
            self._queue.put(append)

    def close(self) -> None:
        """Deliver what was submitted, if possible; refuse later appends. Closing twice does nothing."""
        with self._lock:
            if not self._closed:
                self._closed = True
                self._closing.set()
                self._queue.put(None)
        self._thread.join()

    def _count(self, size: int) -> None:
        self._bytes += size
        telemetry.LOG_BYTES_UNDER_WAY.set(self._bytes)

    # ------------------------------------------------------------------------------------------ our thread

    def _run(self) -> None:
        try:
            self._keep_producing()
        finally:
            self._refuse("the log is closed" if self._closed else "the thread of Kafka's appends broke down")

    def _keep_producing(self) -> None:
        retry_s = _FIRST_RETRY_S
        while not self._closing.is_set():
            producer = self._connect()
            if producer is None:
                self._closing.wait(retry_s)
                retry_s = min(2 * retry_s, _LAST_RETRY_S)
                continue
            retry_s = _FIRST_RETRY_S
            self._hand_on(producer)
            self._retire(producer)

    def _connect(self) -> Any:
        """Return a producer that knows all topics, or None when there is none to be had."""
        producer = None
        try:
            producer = connected(self._settings, KafkaProducer, **producer_options(self._settings))
            with explained():
                counts = {topic: self._count_partitions(producer, topic) for topic in Topic}
            if self._partitions not in ({}, counts):
                raise LogError("a topic's partitions have changed: sessions would move; start this process again")
        except (LogUnavailable, LogError) as error:
            self._refuse(str(error))
            if producer is not None:
                self._shut(producer)
            return None
        with self._lock:
            self._partitions = counts
            self._away = None
        logger.info("Kafka takes appends")
        return producer

    def _count_partitions(self, producer: Any, topic: Topic) -> int:
        name = topic_name(self._settings, topic)
        try:
            return len(producer.partitions_for(name))
        except KafkaTimeoutError as error:
            raise LogUnavailable(f"Kafka knows no topic {name}: run `onward migrate`") from error

    def _hand_on(self, producer: Any) -> None:
        """Pass on appends until the producer fails, or all were passed on and the queue is closed."""
        append: _Append | None = None
        while True:
            with suppress(Empty):
                append = self._queue.get(timeout=_LOOK_S)
            self._look_at_oldest()
            if self._away is not None or (append is None and self._closed):
                break
            if append is not None:
                self._send(producer, append)
                append = None
        if append is not None:
            self._drop(append, len(append.records))

    def _look_at_oldest(self) -> None:
        with self._lock:
            oldest = next(iter(self._under_way), None)
        if oldest is not None and time.monotonic() > oldest.give_up_s + _GRACE_S:
            self._refuse("Kafka's producer makes no progress")

    def _send(self, producer: Any, append: _Append) -> None:
        name = topic_name(self._settings, append.topic)
        for index, record in enumerate(append.records):
            try:
                if time.monotonic() > append.give_up_s:
                    raise KafkaTimeoutError("not sent in time")
                sent = producer.send(name, record.raw, record.key, partition=record.partition)
            except (KafkaError, ValueError) as error:  # ValueError: the producer's metadata lacks the partition
                self._drop(append, len(append.records) - index, str(error))
                return
            sent.add_callback(self._delivered, append, index)
            sent.add_errback(self._failed, append)

    def _drop(self, append: _Append, count: int, why: str | None = None) -> None:
        """Fail the last `count` records of an append, which were not sent."""
        sent = "nothing of this was appended" if count == len(append.records) else "not all of this was appended"
        self._settle(append, count, LogUnavailable(f"{why or self._away or 'the log is closed'}; {sent}"))

    def _retire(self, producer: Any) -> None:
        """Wait for the old producer to finish before a new one starts, so that nothing is reordered."""
        self._shut(producer)
        while not self._queue.empty():
            append = self._queue.get()
            if append is not None:
                self._drop(append, len(append.records))
        with self._lock:
            left = list(self._under_way)
        for append in left:
            broken = "Kafka's producer broke down; whether this was appended is unknown"
            self._settle(append, append.left, LogUnavailable(broken))

    def _shut(self, producer: Any) -> None:
        """Close the producer after pending records were delivered or have failed, if possible."""
        with self._lock:
            newest = next(reversed(self._under_way), None)
        left_s = 0.0 if newest is None else max(0.0, newest.give_up_s - time.monotonic())
        try:
            producer.close(timeout=left_s + _GRACE_S)
        except KafkaTimeoutError:  # then it is not closed at all, and what it holds would follow later
            producer._sender.force_close()
            producer._sender.join(_GRACE_S)

    def _refuse(self, why: str) -> None:
        """Refuse all appends from here on."""
        if why != self._away and not self._closed:
            logger.warning("no appends: %s", why)
        with self._lock:
            self._away = why

    # ------------------------------------------------------------------------------------------ Kafka's thread

    def _delivered(self, append: _Append, index: int, delivered: Any) -> None:
        size = len(append.records[index].raw)
        append.positions[index] = Position(
            topic=append.topic, partition=delivered.partition, offset=delivered.offset, size=size
        )
        self._settle(append, 1)

    def _failed(self, append: _Append, error: Exception) -> None:
        """Replace the producer after a failed delivery, whatever the error was.

        After a delivery that timed out, kafka-python's producer gives up its identity and waits for another one for
        ever."""
        self._refuse(f"Kafka: {error}")
        self._queue.put(None)
        self._settle(append, 1, LogUnavailable(f"Kafka: {error}; whether this was appended is unknown"))

    def _settle(self, append: _Append, count: int, error: LogUnavailable | None = None) -> None:
        """Count `count` more records of an append as done; the last one notifies those who wait."""
        with self._lock:
            append.left -= count
            append.error = append.error or error
            if append.left > 0 or append not in self._under_way:
                return
            del self._under_way[append]
            self._count(-append.size)
        if append.error is not None:
            telemetry.LOG_APPEND_FAILURES.inc()
            self._settler.settle(append.waiter, append.error)
            return
        telemetry.LOG_APPENDS.labels(topic=append.topic).inc(len(append.records))
        self._settler.settle(append.waiter, [append.positions[index] for index in range(len(append.records))])


def producer_options(settings: KafkaSettings) -> dict[str, Any]:
    """Return the options of every producer."""
    delivery_ms, linger_ms = int(1000 * settings.client.delivery_timeout_s), int(1000 * settings.client.linger_s)
    return {
        **options(settings, settings.client.delivery_timeout_s - settings.client.linger_s),
        "acks": "all",
        "enable_idempotence": True,
        "compression_type": "zstd",
        "linger_ms": linger_ms,
        "batch_size": _BATCH_BYTES,
        "delivery_timeout_ms": delivery_ms,
        "max_block_ms": delivery_ms,
        "max_request_size": settings.topics.max_record_bytes + _HEADROOM_BYTES,
        "allow_auto_create_topics": False,
        "metrics_enabled": False,
    }
