"""The servers of `make services`, for benchmarks of the distributed mode.

Each benchmark has topics and a database of its own, which are deleted afterwards."""

import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager

import psycopg
from kafka import KafkaAdminClient

from core.errors import LogUnavailable
from core.events import Topic
from core.settings import KafkaSettings, KafkaTopicSettings, PostgresSettings
from core.store import SqlStore, open_postgres
from core.store.database.migrate import migrate_postgres
from deploy.services.stack import Stack
from ingest.kafka.clients import topic_name
from ingest.kafka.log import KafkaEventLog
from ingest.kafka.topics import migrate

TIMEOUT_S = 120.0
APPLICATION = "onward bench"


def running() -> Stack:
    stack = Stack()
    if not stack.alive:
        raise SystemExit("needs Kafka and PostgreSQL: run `make services`")
    return stack


@contextmanager
def topics(partitions: int, *, flush: bool | None = None) -> Iterator[KafkaSettings]:
    servers, prefix = (running().kafka.address,), f"bench-{uuid.uuid4().hex[:12]}-"
    settings = KafkaSettings(bootstrap_servers=servers, prefix=prefix, topics=KafkaTopicSettings(flush=flush))
    migrate(settings, partitions)
    try:
        yield settings
    finally:
        with closing(KafkaAdminClient(bootstrap_servers=list(settings.bootstrap_servers))) as admin:
            admin.delete_topics([topic_name(settings, topic) for topic in Topic])


@contextmanager
def log_on(settings: KafkaSettings) -> Iterator[KafkaEventLog]:
    """Yield a connected log."""
    with closing(KafkaEventLog(settings)) as log:
        wait_for(lambda: takes_appends(log))
        yield log


def takes_appends(log: KafkaEventLog) -> bool:
    try:
        log.partitions(Topic.TURNS)
    except LogUnavailable:
        return False
    return True


@contextmanager
def empty_database() -> Iterator[PostgresSettings]:
    server, name = running().postgres.url, f"onward_bench_{uuid.uuid4().hex[:12]}"
    with psycopg.connect(server, autocommit=True) as admin:
        admin.execute(f"CREATE DATABASE {name}".encode())
        try:
            yield PostgresSettings(url=f"{server.rsplit('/', 1)[0]}/{name}", statement_timeout_s=3600)
        finally:
            admin.execute(f"DROP DATABASE {name} WITH (FORCE)".encode())


@contextmanager
def migrated_database() -> Iterator[PostgresSettings]:
    with empty_database() as settings:
        migrate_postgres(settings)
        yield settings


def settle(settings: PostgresSettings) -> None:
    """Do what Postgres' own housekeeping does in time."""
    with psycopg.connect(settings.url, autocommit=True) as connection:
        connection.execute("VACUUM ANALYZE")
        connection.execute("CHECKPOINT")


@contextmanager
def store_on(settings: PostgresSettings) -> Iterator[SqlStore]:
    with closing(open_postgres(settings, APPLICATION)) as store:
        yield store


def wait_for(condition: Callable[[], object], pause_s: float = 0.005) -> None:
    deadline_s = time.monotonic() + TIMEOUT_S
    while not condition():
        if time.monotonic() > deadline_s:
            raise SystemExit(f"waited {TIMEOUT_S:g} s in vain")
        time.sleep(pause_s)
