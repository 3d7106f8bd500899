"""Real Kafka, PostgreSQL and Redis, shared by all tests: each takes a prefix, a database, of its own."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from deploy.services.broker import Broker
from deploy.services.stack import Stack


@dataclass(frozen=True)
class Services:
    kafka: tuple[str, ...]
    """Bootstrap servers; take a prefix of your own."""
    postgres: str
    """URL of a superuser's database; make one of your own."""
    redis: str
    """Take a prefix of your own."""


def require_services() -> Services:
    """What `make services` runs. Without it the test is skipped, or, with ONWARD_REQUIRE_SERVICES=1, it is started."""
    stack = _running()
    if stack is None:
        pytest.skip("needs Kafka, PostgreSQL and Redis: run `make services`")
    return Services(kafka=(stack.kafka.address,), postgres=stack.postgres.url, redis=stack.redis.url)


def require_broker(
    directory: Path, properties: Mapping[str, str] | None = None, listeners: Mapping[str, str] | None = None
) -> Broker:
    """A Kafka of the test's own, to be harmed; skipped like the others. Whoever takes it calls `kill` at the end."""
    require_services()
    broker = Broker(directory, properties, listeners)
    broker.up()
    return broker


@cache
def _running() -> Stack | None:
    stack = Stack()
    if os.environ.get("ONWARD_REQUIRE_SERVICES") == "1":
        stack.up()
    return stack if stack.alive else None
