"""Queries and commands about offsets, apart from reading and appending."""

import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, Final, TypeVar

from kafka import KafkaAdminClient, KafkaConsumer
from kafka import TopicPartition as KafkaPartition

from core.errors import LogUnavailable
from core.ports import TopicPartition
from core.settings import KafkaSettings
from ingest.kafka.clients import connected, explained, options, topic_name

T = TypeVar("T")
_ASK_AGAIN_S: Final = 0.5
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class Inquiry:
    """Answers a log's questions about offsets; thread-safe.

    It connects when first asked, and raises LogUnavailable, LogError."""

    def __init__(self, settings: KafkaSettings) -> None:
        self._settings = settings
        self._timeout_ms = int(1000 * settings.client.delivery_timeout_s)
        self._consumer = _OneAtATime(
            lambda: connected(
                settings,
                KafkaConsumer,
                **options(settings, settings.client.delivery_timeout_s),
                allow_auto_create_topics=False,
                metrics_enabled=False,
            ),
            lambda client: client.close(autocommit=False, timeout_ms=0),
        )
        self._admin = _OneAtATime(
            lambda: connected(settings, KafkaAdminClient, **options(settings, settings.client.delivery_timeout_s)),
            lambda client: client.close(),
        )

    def earliest(self, source: TopicPartition) -> int:
        partition = self._theirs(source)
        return self._ask_int(lambda client: client.beginning_offsets([partition], self._timeout_ms)[partition])

    def end(self, source: TopicPartition) -> int:
        partition = self._theirs(source)
        return self._ask_int(lambda client: client.end_offsets([partition], self._timeout_ms)[partition])

    def offset_at(self, source: TopicPartition, moment: datetime) -> int:
        partition, at_ms = self._theirs(source), -(-(moment - _EPOCH) // timedelta(milliseconds=1))
        found = self._consumer.ask(
            lambda client: client.offsets_for_times({partition: max(0, at_ms)}, self._timeout_ms)[partition]
        )
        return self.end(source) if found is None else int(found.offset)

    def committed(self, group: str, source: TopicPartition) -> int | None:
        partition, group_id = self._theirs(source), self._settings.prefix + group
        found = self._admin.ask(lambda client: client.list_group_offsets({group_id: [partition]}))
        offset = found[group_id].get(partition)
        return None if offset is None or offset.offset < 0 else int(offset.offset)

    def delete_before(self, source: TopicPartition, offset: int) -> None:
        if offset > self.earliest(source):
            partition = self._theirs(source)
            self._admin.ask(lambda client: client.delete_records({partition: offset}, self._timeout_ms))

    def close(self) -> None:
        self._consumer.close()
        self._admin.close()

    def _theirs(self, source: TopicPartition) -> KafkaPartition:
        return KafkaPartition(topic_name(self._settings, source.topic), source.partition)

    def _ask_int(self, question: Callable[[Any], Any]) -> int:
        return int(self._consumer.ask(question))


class _OneAtATime:
    """A Kafka client that is made when needed, and made again after it failed."""

    def __init__(self, connect: Callable[[], Any], close: Callable[[Any], None]) -> None:
        self._connect, self._close = connect, close
        self._lock = threading.Lock()
        self._client: Any = None
        self._failure: LogUnavailable | None = None
        self._quiet_until_s = 0.0  # the failure is the answer until then: those who wait in line do not wait each

    def ask(self, question: Callable[[Any], T]) -> T:
        with self._lock:
            if self._failure is not None and time.monotonic() < self._quiet_until_s:
                raise LogUnavailable(str(self._failure))
            try:
                if self._client is None:
                    self._client = self._connect()
                with explained():
                    return question(self._client)
            except LogUnavailable as error:
                self._failure, self._quiet_until_s = error, time.monotonic() + _ASK_AGAIN_S
                self._let_go()
                raise

    def close(self) -> None:
        with self._lock:
            self._let_go()

    def _let_go(self) -> None:
        if self._client is not None:
            self._close(self._client)
            self._client = None
