"""Records that nothing can read, among valid ones."""

import os
import subprocess
import sys

import pytest
from fault_counts import settle
from fault_table import FaultTable
from fault_users import Users
from fault_world import World
from kafka import KafkaProducer
from service_tree import wait_for

from bench.table import Row
from core.events import DeadLetter, Topic
from ingest.kafka.clients import topic_name

pytestmark = pytest.mark.timeout(900)
_LINE = 'onward_dead_letters_total{topic="onward.turns"}'
_BATCH_BYTES = 1 << 15  # over our own limit of a record, and within the topic's


def test_poison_is_set_aside_and_the_rest_goes_on(world: World, users: Users, table: FaultTable) -> None:
    before, counted = len(letters_of(world)), counter(world)
    limit = world.foundation.settings.kafka.topics.max_record_bytes
    poison = [b"", b"\x00", b"not ours at all", b"\x92\x01\x81\xa4type\xa7nothing", os.urandom(limit + _BATCH_BYTES)]
    users.wait_for_more(5)
    appended = put(world, poison)
    wait_for(lambda: len(letters_of(world)) - before >= appended, what="the dead letters")
    users.wait_for_more(5)
    tally = settle(world, users)
    letters = letters_of(world)[: len(letters_of(world)) - before]
    assert sorted(map(len, (letter.raw for letter in letters))) == sorted(
        len(raw) for raw in poison for _ in range(appended // len(poison))
    )
    assert all(letter.reason for letter in letters)
    assert counter(world) - counted >= appended
    listed = run_list(world)
    assert all(f"{letter.topic}:{letter.partition}:{letter.offset}" in listed for letter in letters)
    fault = "poison in every partition"
    table.add(fault, tally, Row(f"{fault}: set aside", len(letters), f"of {appended} records", goal=appended))


def put(world: World, poison: list[bytes]) -> int:
    """Append each record to each partition; return how many that were."""
    settings, producer = world.foundation.settings.kafka, None
    producer = KafkaProducer(bootstrap_servers=list(settings.bootstrap_servers), max_request_size=1 << 24)
    partitions = world.foundation.log.partitions(Topic.TURNS)
    try:
        sent = [
            producer.send(topic_name(settings, Topic.TURNS), raw, partition=partition)
            for partition in range(partitions)
            for raw in poison
        ]
        for each in sent:
            each.get(timeout=60)
    finally:
        producer.close()
    return len(sent)


def letters_of(world: World) -> list[DeadLetter]:
    with world.foundation.store.look() as view:
        return view.dead_letters.newest(1000)


def counter(world: World) -> float:
    return sum(world.metric(name, _LINE) for name in world.names("ingest"))


def run_list(world: World) -> str:
    command = [sys.executable, "-m", "onward", "dead-letters", "list", str(world.service.directory)]
    environment = {**os.environ, **world.service.overrides}
    return subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout
