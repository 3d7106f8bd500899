"""Two controllers at once: whatever happens in between, one decides, and there is one chain."""

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import count

import pytest
from mortal import Fuse
from release_world import LEASE_S, Process, ReleaseWorld
from waiting import wait_for

from core.clock import SystemClock
from core.events import Topic
from core.ports import Consumer, RebalanceListener
from core.stages.rounds import Rounds

MakeWorld = Callable[..., ReleaseWorld]


class Pause(Fuse):
    """A fuse that suspends the process while `meanwhile` runs, instead of ending it."""

    def __init__(self, at: int, meanwhile: Callable[[], None]) -> None:
        super().__init__()
        self._pause_at, self._meanwhile = at, meanwhile
        self.paused = False

    def __call__(self) -> None:
        self.calls += 1
        if self.calls - 1 == self._pause_at:
            self.paused = True
            self._meanwhile()


@pytest.mark.parametrize("order", [False, True])
def test_one_that_sleeps_before_any_write_does_not_disturb_the_next(start_world: MakeWorld, order: bool) -> None:
    """The sleeper wakes after another has decided, and is fenced out; it may only repeat an append."""
    world = start_world(settings={"serving.versions.keep": 1000})
    live = 1
    for at in count():
        assert at < 40
        if order:
            world.release(1)
            world.order("rollback", 1)
        expected = 1 if order else world.publish(live)

        def meanwhile() -> None:
            sleeper = world.processes.pop()
            world.clock.advance(LEASE_S + 0.1)
            world.start_controller(f"other-{world.clock.monotonic()}")
            world.run()
            world.processes.insert(0, sleeper)

        for process in world.processes:
            process.controller.close()
        pause = Pause(at, meanwhile)
        world.processes = [Process(world, f"sleeper-{at}", pause)]
        world.run()
        live = world.check_one_lives(in_order=False)
        assert live == expected, at
        if not pause.paused:
            break
    assert at >= 5
    assert _told_twice(world) <= at + 1


def test_two_at_once_keep_one_chain(make_world: MakeWorld) -> None:
    """Threads over one store and log sleep past their lease now and then, amid versions and rollbacks."""
    world = make_world(
        clock=SystemClock(),
        settings={"release.lease_s": 0.6, "serving.fleet.heartbeat_timeout_s": 60.0, "serving.versions.keep": 1000},
    )
    for name in world.names:
        world.start_engine(name)
        world.start_host(name)
    drowsy = [_Drowsy(seed) for seed in (1, 2)]
    for fuse in drowsy:
        world.start_controller(f"controller-{fuse.seed}", fuse)
    with _all_at_once(world) as failed:
        for at in range(12):
            version = world.publish(world.live or 1)
            if at % 3 == 2:
                world.order("rollback", 1, f"order {at}")
            wait_for(lambda: world.states()[version] not in ("candidate", "canary") or failed)  # noqa: B023
        for fuse in drowsy:
            fuse.awake = True
        final = world.publish(world.live or 1)
        wait_for(lambda: world.states()[final] == "live" or failed)
        told = len(world.history())
        wait_for(lambda: len({(r.version, r.state, r.at) for r in world.said()}) >= told or failed)
    assert not failed
    assert sum(fuse.slept for fuse in drowsy) > 2
    assert world.check_one_lives(in_order=False) == final


def test_who_needs_long_to_begin_keeps_its_lease(make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """Joining a broker's group is slow on a busy machine, where two controllers once took turns for ever."""
    world = make_world(
        clock=SystemClock(), settings={"release.lease_s": 4.0, "serving.fleet.heartbeat_timeout_s": 60.0}
    )
    join, began = world.log.consumer, []

    def join_slowly(group: str, topics: Sequence[Topic], listener: RebalanceListener | None = None) -> Consumer:
        began.append(group)
        time.sleep(4.5)  # longer than the lease
        return join(group, topics, listener)

    monkeypatch.setattr(world.log, "consumer", join_slowly)
    for name in world.names:
        world.start_engine(name)
        world.start_host(name)
    for number in (1, 2):
        world.start_controller(f"controller-{number}")
    with _all_at_once(world) as failed:
        version = world.publish(1)
        wait_for(lambda: world.states()[version] == "live" or failed)
    assert not failed
    assert began == ["releases"]


@contextmanager
def _all_at_once(world: ReleaseWorld) -> Iterator[list[BaseException]]:
    """Run controllers and hosts in threads; yield the errors that ended any."""
    over, failed = threading.Event(), []

    def live(step: Callable[[float], int]) -> None:
        try:
            while not over.is_set():
                step(0.005)
        except BaseException as error:  # noqa: BLE001  # told to the test
            failed.append(error)

    stages = [process.controller for process in world.processes] + list(world.hosts.values())
    steps = [Rounds("racing", stage).step for stage in stages]
    threads = [threading.Thread(target=live, args=(step,)) for step in steps]
    for thread in threads:
        thread.start()
    try:
        yield failed
    finally:
        over.set()
        for thread in threads:
            thread.join(120)


class _Drowsy(Fuse):
    def __init__(self, seed: int) -> None:
        super().__init__()
        self.seed, self._random = seed, random.Random(seed)
        self.slept, self.awake = 0, False

    def __call__(self) -> None:
        self.calls += 1
        if not self.awake and self._random.random() < 0.1:
            self.slept += 1
            time.sleep(0.7)  # beyond the lease


def _told_twice(world: ReleaseWorld) -> int:
    told = Counter((release.version, release.state, release.at) for release in world.said())
    return sum(times - 1 for times in told.values()) - 1  # the anchor's: by who made it, too
