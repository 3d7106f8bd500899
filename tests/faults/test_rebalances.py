"""Members that join and leave every second."""

import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager

import pytest
from fault_counts import settle
from fault_table import IS_FULL, FaultTable
from fault_users import Users
from fault_world import World
from service_tree import wait_for

from bench.table import Row
from core.errors import Unavailable
from core.stages.rounds import Rounds
from onward.wiring.foundation import open_foundation
from onward.wiring.stages import Neighbours, row_of

pytestmark = pytest.mark.timeout(1800)
_STORM_S = 120.0 if IS_FULL else 10.0
_STAY_S = 1.0
_STEP_S = 0.1


def test_a_storm_of_rebalances(world: World, users: Users, table: FaultTable) -> None:
    """Besides the tree's own, a real writer and scorer join, work for a second and leave, over and over."""
    users.wait_for_more(1)
    over_s = time.monotonic() + _STORM_S
    with guest(world, "ingest") as writers, guest(world, "score") as scorers:

        def is_over() -> bool:  # on a busy machine a rebalance takes longer
            return time.monotonic() > over_s and len(writers) + len(scorers) > _STORM_S / 5

        wait_for(is_over, _STORM_S + 300, "a storm with so many members")
    joined = len(writers) + len(scorers)
    fault = f"members joining and leaving for {_STORM_S:g} s"
    table.add(fault, settle(world, users), Row(f"{fault}: joined", joined, "members"))
    assert joined > _STORM_S / 5


@contextmanager
def guest(world: World, command: str) -> Iterator[list[float]]:
    """Let a stage join and leave while the block runs; yield when it joined (monotonic)."""
    joined, over = list[float](), threading.Event()
    foundation = open_foundation(world.service.directory, world.service.overrides)
    beside = Neighbours(foundation.log, lambda: None)

    def come_and_go() -> None:
        while not over.is_set():
            try:
                with closing(row_of(command).make(foundation, beside)) as stage:
                    joined.append(time.monotonic())
                    rounds = Rounds(command, stage)
                    while time.monotonic() < joined[-1] + _STAY_S:
                        rounds.step(_STEP_S)
            except Unavailable:  # our log connects
                over.wait(_STEP_S)

    thread = threading.Thread(target=come_and_go)
    thread.start()
    try:
        yield joined
    finally:
        over.set()
        thread.join()
        foundation.close()
