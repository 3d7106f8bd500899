"""Kafka, Postgres and Redis restarted or down for a while: users keep working, and nothing is lost."""

import time
from collections.abc import Callable

import pytest
from fault_counts import settle
from fault_table import AWAY_S, IS_FULL, FaultTable
from fault_users import Users
from fault_world import World
from service_tree import wait_for

from deploy.services.server import Server

pytestmark = pytest.mark.timeout(1800)
at_once = pytest.mark.skipif(not IS_FULL, reason="only `make faults` brings it back at once, too: the rest has it away")
_WORK = 10  # turns before, during and after


def go_away(world: World, users: Users, server: Server, component: str, end: Callable[[], None]) -> None:
    """Stop a server for a while, in which users are answered and `/readyz` names the component."""
    users.wait_for_more(_WORK)
    end()
    over_s = time.monotonic() + AWAY_S
    wait_for(lambda: world.says(component), what=f"{component} in /readyz")
    users.wait_for_more(_WORK)
    wait_for(lambda: time.monotonic() > over_s, AWAY_S + 60, "the end of the outage")
    wait_for(lambda: world.says(component), what=f"{component} in /readyz to the outage's end")
    server.up()
    users.wait_for_more(_WORK)
    wait_for(lambda: not any(component in world.readiness(url) for url in world.urls), what=f"{component}, well")


@at_once
def test_kafka_is_killed_and_started(world: World, users: Users, table: FaultTable) -> None:
    users.wait_for_more(_WORK)
    world.stack.kafka.kill()
    world.stack.kafka.up()
    users.wait_for_more(_WORK)
    table.add("Kafka killed and started", settle(world, users))


def test_kafka_is_away(world: World, users: Users, table: FaultTable) -> None:
    go_away(world, users, world.stack.kafka, "log", world.stack.kafka.kill)
    table.add(f"Kafka away for {AWAY_S:g} s", settle(world, users))


@at_once
def test_postgres_is_restarted(world: World, users: Users, table: FaultTable) -> None:
    users.wait_for_more(_WORK)
    world.stack.postgres.down()
    world.stack.postgres.up()
    users.wait_for_more(_WORK)
    table.add("Postgres restarted", settle(world, users))


def test_postgres_is_away(world: World, users: Users, table: FaultTable) -> None:
    go_away(world, users, world.stack.postgres, "store", world.stack.postgres.kill)
    table.add(f"Postgres killed, away for {AWAY_S:g} s", settle(world, users))


def test_redis_is_flushed(world: World, users: Users, table: FaultTable) -> None:
    import redis

    with redis.Redis.from_url(world.stack.redis.url) as client:
        for _ in range(5):
            users.wait_for_more(_WORK // 2)
            client.flushall()
    table.add("Redis flushed 5 times", settle(world, users))


def test_redis_is_away(world: World, users: Users, table: FaultTable) -> None:
    go_away(world, users, world.stack.redis, "live_state", world.stack.redis.kill)
    table.add(f"Redis killed, away for {AWAY_S:g} s", settle(world, users))
