"""The cost of our event log over Kafka's own clients: single acknowledged appends, and turns from Kafka into Postgres.

    make services && python -m bench kafka_ingest

Appends: so many tasks on an event loop, as in the API, each awaiting its append before the next; and blocking
batches, as the scorer and the spool send them. The floor is kafka-python's producer with the settings of ours
(acks=all, idempotent, linger, zstd), which gets keys and bytes and has as many records under way. Our side encodes
the events. Reading: the writer (group, decoding, Postgres) against a consumer that decodes and does nothing else."""

import asyncio
import gc
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from functools import partial
from typing import Any

import uvloop
from kafka import KafkaConsumer, KafkaProducer
from kafka import TopicPartition as KafkaPartition
from sqlalchemy import text

from bench.log.traffic import turns
from bench.services import TIMEOUT_S, log_on, migrated_database, store_on, topics
from bench.table import Row, interleave, report
from core.clock import SystemClock
from core.codec import decode, encode
from core.events import Completion, Event, Topic
from core.settings import IngestSettings, KafkaSettings
from core.stages.rounds import Rounds
from core.store import SqlStore
from ingest.kafka.clients import connected, options, topic_name
from ingest.kafka.log import KafkaEventLog, key_of
from ingest.kafka.producer import producer_options
from ingest.routing import partition_of
from ingest.writer import Writer

ROUNDS = 5
PARTITIONS = 4
APPENDERS = {1: 200, 8: 1600, 32: 6000, 128: 8000}  # to turns of a round
BATCH = 500
BATCHED = 8000
STORED = 8000
POLL = 512  # records at once, as the writer's
PRODUCER = "KafkaProducer alone"
Prepared = tuple[int, bytes, bytes]  # partition, key, value


class Run:
    """A contender with its figures of all rounds; `work` returns how long each acknowledgement took, in seconds."""

    def __init__(self, work: Callable[[], Sequence[float]]) -> None:
        self._work = work
        self.p50_ms: list[float] = []
        self.p99_ms: list[float] = []
        self.cpu_us: list[float] = []

    def __call__(self) -> float:
        """Run a round and return events per second."""
        start_s, cpu_s = time.perf_counter(), time.process_time()
        took_s = self._work()
        rate = len(took_s) / (time.perf_counter() - start_s)
        self.cpu_us.append((time.process_time() - cpu_s) / len(took_s) * 1e6)
        self.p50_ms.append(statistics.median(took_s) * 1000)
        self.p99_ms.append(statistics.quantiles(took_s, n=100, method="inclusive")[98] * 1000)
        return rate


# ------------------------------------------------------------------------------------------ appending


def append(log: KafkaEventLog, events: Sequence[Event], appenders: int) -> list[float]:
    took_s: list[float] = []
    waiting = iter(events)

    async def appender() -> None:
        for event in waiting:
            start_s = time.perf_counter()
            await log.append(Topic.TURNS, event)
            took_s.append(time.perf_counter() - start_s)

    async def run() -> None:
        await asyncio.gather(*(appender() for _ in range(appenders)))

    uvloop.run(run())
    return took_s


def send(producer: Any, topic: str, records: Sequence[Prepared], under_way: int) -> list[float]:
    """Send records with at most `under_way` unacknowledged, without tasks or an event loop."""
    took_s: list[float] = []
    free = threading.Semaphore(under_way)

    def acknowledged(start_s: float, _: object) -> None:
        took_s.append(time.perf_counter() - start_s)
        free.release()

    for partition, key, raw in records:
        assert free.acquire(timeout=TIMEOUT_S)
        producer.send(topic, raw, key, partition=partition).add_callback(acknowledged, time.perf_counter())
    for _ in range(under_way):
        assert free.acquire(timeout=TIMEOUT_S)
    return took_s


def append_batches(log: KafkaEventLog, events: Sequence[Event]) -> list[float]:
    took_s = []
    for first in range(0, len(events), BATCH):
        start_s = time.perf_counter()
        log.append_blocking(Topic.TURNS, events[first : first + BATCH])
        took_s += [time.perf_counter() - start_s] * BATCH
    return took_s


def send_batches(producer: Any, topic: str, records: Sequence[Prepared]) -> list[float]:
    took_s = []
    for first in range(0, len(records), BATCH):
        start_s = time.perf_counter()
        sent: list[Future[Any]] = [
            producer.send(topic, raw, key, partition=partition)
            for partition, key, raw in records[first : first + BATCH]
        ]
        for one in sent:
            one.get(TIMEOUT_S)  # type: ignore[attr-defined]  # Kafka's own future
        took_s += [time.perf_counter() - start_s] * BATCH
    return took_s


def prepared(event: Event) -> Prepared:
    return partition_of(event, PARTITIONS), key_of(event), encode(event)


def producing(log: KafkaEventLog, settings: KafkaSettings, events: Sequence[Completion]) -> Iterator[Row]:
    topic, records = topic_name(settings, Topic.TURNS), [prepared(event) for event in events]
    yield Row("record size", sum(len(raw) for _, _, raw in records) / len(records), "bytes")
    producer = connected(settings, KafkaProducer, **producer_options(settings))
    ours: dict[str, Run] = {}
    theirs: dict[str, Run] = {}
    for appenders, count in APPENDERS.items():
        name = "1 appender" if appenders == 1 else f"{appenders} appenders"
        ours[name] = Run(partial(append, log, events[:count], appenders))
        theirs[name] = Run(partial(send, producer, topic, records[:count], appenders))
    name = f"blocking batches of {BATCH}"
    ours[name] = Run(partial(append_batches, log, events[:BATCHED]))
    theirs[name] = Run(partial(send_batches, producer, topic, records[:BATCHED]))
    for name, run in ours.items():
        yield from compared(name, run, theirs[name])
    producer.close()


def compared(name: str, ours: Run, theirs: Run) -> Iterator[Row]:
    rates = interleave({"ours": ours, "theirs": theirs}, ROUNDS)
    yield Row(name, rates["ours"], "turns/s", PRODUCER, rates["ours"] / rates["theirs"])
    for label, unit in (("p50_ms", "ms"), ("p99_ms", "ms"), ("cpu_us", "µs/turn")):
        value, floor = (statistics.median(getattr(run, label)) for run in (ours, theirs))
        what = {"p50_ms": "acknowledged, p50", "p99_ms": "acknowledged, p99", "cpu_us": "CPU of the client"}[label]
        yield Row(f"{name}: {what}", value, unit, PRODUCER, value / floor)


# ------------------------------------------------------------------------------------------ reading


def write_rate(log: KafkaEventLog, store: SqlStore) -> float:
    """Return turns per second into an empty store, once the writer has joined and read."""
    with store.begin() as connection:
        connection.execute(text("TRUNCATE turns, offsets"))
    writer = Writer(log, store, IngestSettings(partitions=PARTITIONS), SystemClock())
    rounds = Rounds("writer", writer)
    while not (first := rounds.step(1.0)):
        pass
    start_s, done = time.perf_counter(), first
    while done < STORED:
        done += rounds.step(1.0)
    rate = (done - first) / (time.perf_counter() - start_s)
    writer.close()
    return rate


def decode_rate(settings: KafkaSettings, partitions: int, count: int) -> float:
    """Return turns per second of a consumer that only decodes the first `count` turns, once it has read."""
    consumer = connected(settings, KafkaConsumer, **options(settings, settings.client.delivery_timeout_s))
    sources = [KafkaPartition(topic_name(settings, Topic.TURNS), number) for number in range(partitions)]
    consumer.assign(sources)
    consumer.seek_to_beginning(*sources)
    while not (first := decode_some(consumer)):
        pass
    start_s, done = time.perf_counter(), first
    while done < count:
        done += decode_some(consumer)
    rate = (done - first) / (time.perf_counter() - start_s)
    consumer.close(autocommit=False)
    return rate


def decode_some(consumer: Any) -> int:
    found = consumer.poll(timeout_ms=1000, max_records=POLL)
    return sum(1 for records in found.values() for record in records if decode(record.value) is not None)


def storing() -> Iterator[Row]:
    with ExitStack() as stack:
        settings = stack.enter_context(topics(PARTITIONS))
        log = stack.enter_context(log_on(settings))
        store = stack.enter_context(store_on(stack.enter_context(migrated_database())))
        log.append_blocking(Topic.TURNS, list(turns(STORED)))
        read = partial(decode_rate, settings, PARTITIONS, STORED)
        rates = interleave({"stored": partial(write_rate, log, store), "read": read}, ROUNDS)
    floor = "consumer that only decodes"
    yield Row("read and decoded by kafka-python's consumer", rates["read"], "turns/s")
    yield Row("written to Postgres", rates["stored"], "turns/s", floor, rates["stored"] / rates["read"])


def main() -> None:
    events = list(turns(max(*APPENDERS.values(), BATCHED)))
    gc.freeze()
    rows = list(storing())
    with topics(PARTITIONS) as settings, log_on(settings) as log:
        rows = [*producing(log, settings, events), *rows]
    report("kafka_ingest", rows)


if __name__ == "__main__":
    main()
