"""Real Kafka, PostgreSQL and Redis, shared by all tests; each test uses a prefix or database of its own."""

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
    """Bootstrap servers; use a prefix of your own."""
    postgres: str
    """URL of a superuser's database; make one of your own."""
    redis: str
    """URL; use a prefix of your own."""


def require_services() -> Services:
    """Return the services that `make services` runs; skip the test where there are none.

    With ONWARD_REQUIRE_SERVICES=1 they are started instead."""
    stack = _running()
    if stack is None:
        pytest.skip("needs Kafka, PostgreSQL and Redis: run `make services`")
    return Services(kafka=(stack.kafka.address,), postgres=stack.postgres.url, redis=stack.redis.url)


def require_broker(
    directory: Path, properties: Mapping[str, str] | None = None, listeners: Mapping[str, str] | None = None
) -> Broker:
    """Start a Kafka of the test's own, to be harmed; skip like the others.

    The caller calls `kill` at the end."""
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
