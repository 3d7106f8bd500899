"""Members that come and go every second."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager

import pytest
from fault_table import IS_FULL, FaultTable
from fault_tally import settle
from fault_users import Users
from fault_world import World
from service_tree import wait_for

from bench.table import Row
from core.errors import Unavailable
from onward.wiring import Foundation, Stage, build_scorer, build_writer, open_foundation

pytestmark = pytest.mark.timeout(900)
_STORM_S = 120.0 if IS_FULL else 10.0
_STAY_S = 1.0
_STEP_S = 0.1


def test_a_storm_of_rebalances(world: World, users: Users, table: FaultTable) -> None:
    """Beside the tree's own: a writer and a scorer, real ones, join, work for a second and leave, again and again."""
    builds: list[Callable[[Foundation], Stage]] = [
        lambda foundation: build_writer(foundation, foundation.log),
        lambda foundation: build_scorer(foundation, foundation.log, None),
    ]
    users.wait_for_more(1)
    over_s = time.monotonic() + _STORM_S
    with guest(world, builds[0]) as writers, guest(world, builds[1]) as scorers:
        wait_for(lambda: time.monotonic() > over_s, _STORM_S + 1, "the end of the storm")
    joined = len(writers) + len(scorers)
    fault = f"members joining and leaving for {_STORM_S:g} s"
    table.add(fault, settle(world, users), Row(f"{fault}: joined", joined, "members"))
    assert joined > _STORM_S / 5


@contextmanager
def guest(world: World, build: Callable[[Foundation], Stage]) -> Iterator[list[float]]:
    """When each of them joined (monotonic), while the block runs."""
    joined, over = list[float](), threading.Event()
    foundation = open_foundation(world.service.directory, world.service.overrides)

    def come_and_go() -> None:
        while not over.is_set():
            try:
                with closing(build(foundation)) as stage:
                    joined.append(time.monotonic())
                    while time.monotonic() < joined[-1] + _STAY_S:
                        stage.step(_STEP_S)
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
