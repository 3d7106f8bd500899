"""Real Kafka, PostgreSQL and Redis, shared by all tests: each takes a prefix, a database, of its own."""

import os
from dataclasses import dataclass
from functools import cache

import pytest

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


@cache
def _running() -> Stack | None:
    stack = Stack()
    if os.environ.get("ONWARD_REQUIRE_SERVICES") == "1":
        stack.up()
    return stack if stack.alive else None
