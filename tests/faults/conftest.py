"""One stack for all faults of a run, and the table that they fill."""

import logging
from collections.abc import Iterator

import pytest
from fault_table import FaultTable
from fault_users import Users
from fault_world import World, fault_world


@pytest.fixture(scope="package", autouse=True)
def _quiet_kafka() -> Iterator[None]:
    """Silence kafka-python, which logs every attempt to reach a broker that is down.

    Other tests check its log lines, so it is silenced here alone."""
    speaker = logging.getLogger("kafka")
    level = speaker.level
    speaker.setLevel(logging.CRITICAL)
    yield
    speaker.setLevel(level)


@pytest.fixture(scope="package")
def whole_world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with fault_world(tmp_path_factory.mktemp("faults")) as made:
        yield made


@pytest.fixture
def world(whole_world: World) -> World:
    """Return the world once it has recovered from earlier faults."""
    whole_world.wait_until_well()
    return whole_world


@pytest.fixture
def users(world: World) -> Iterator[Users]:
    with Users(world.urls) as made:
        yield made


@pytest.fixture(scope="package")
def table() -> Iterator[FaultTable]:
    made = FaultTable()
    yield made
    made.write()
