"""The chain of releases: one writer at a time, compare and swap, and every step in the log."""

from collections.abc import Iterator
from pathlib import Path

import made_events
import pytest
from ready_stores import open_ready
from release_world import START

from core.clock import ManualClock
from core.errors import Conflict, Fenced
from core.events import GateVerdict, Release, ReleaseState, Topic
from core.ids import PolicyRef, base_ref
from core.store import SqlStore
from ingest.sqlite.log import SqliteEventLog
from serving.releases.chain import Chain

TTL_S = 5.0


class World:
    def __init__(self, directory: Path) -> None:
        self.clock = ManualClock(START)
        self.store: SqlStore = open_ready(directory / "store.db")
        self.log = SqliteEventLog(directory / "log.db", partitions=4, poll_s=0.01)
        for _ in range(3):
            self.publish()

    def publish(self) -> PolicyRef:
        with self.store.work() as work:
            version = work.policies.allocate(self.clock.now())
            work.policies.put(made_events.policy(version, created_at=self.clock.now()))
        return version

    def chain(self, holder: str) -> Chain:
        return Chain(self.store, self.log, "local", self.clock, holder, TTL_S)

    def step(self, version: int, state: ReleaseState) -> Release:
        return Release(
            version=base_ref(version), cluster="local", state=state, why="test", by="gate", at=self.clock.now()
        )

    def history(self) -> list[tuple[int, str]]:
        with self.store.look() as view:
            return [(release.version.version, release.state) for _, release in view.releases.after(0, 100)]

    def told(self) -> list[tuple[int, str]]:
        consumer = self.log.consumer("reader", [Topic.RELEASES])
        try:
            events = [record.event for record in consumer.poll(1000, 0)]
        finally:
            consumer.close()
        return [(event.version.version, event.state) for event in events if isinstance(event, Release)]


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    yield made
    made.log.close()
    made.store.close()


def test_one_leads_and_the_other_follows_when_it_falls_silent(world: World) -> None:
    first, second = world.chain("a"), world.chain("b")
    assert (first.lead(), second.lead()) == (True, False)
    world.clock.advance(TTL_S - 0.1)
    assert (first.lead(), second.lead()) == (True, False), "renewed"
    world.clock.advance(TTL_S + 0.1)
    assert (second.lead(), first.lead()) == (True, False)


def test_one_who_resigns_is_followed_at_once(world: World) -> None:
    first, second = world.chain("a"), world.chain("b")
    first.lead()
    first.resign()
    assert second.lead()


def test_the_same_holder_has_its_lease_again(world: World) -> None:
    assert world.chain("a").lead()
    assert world.chain("a").lead()


def test_who_lost_the_lease_without_noticing_writes_nothing(world: World) -> None:
    first, second = world.chain("a"), world.chain("b")
    first.lead()
    world.clock.advance(TTL_S + 1)
    second.lead()
    with pytest.raises(Fenced):
        first.write(0, [world.step(1, "live")])
    assert world.history() == []
    second.write(0, [world.step(1, "live")])
    assert world.history() == [(1, "live")]


def test_who_never_led_writes_nothing(world: World) -> None:
    with pytest.raises(Fenced):
        world.chain("a").write(0, [world.step(1, "live")])


def test_a_write_upon_an_old_view_is_refused_whole(world: World) -> None:
    chain = world.chain("a")
    chain.lead()
    chain.write(0, [world.step(1, "live")])
    effects: list[str] = []
    with pytest.raises(Conflict):
        chain.write(0, [world.step(2, "live")], lambda _: effects.append("done"))
    assert (world.history(), effects) == ([(1, "live")], [])


@pytest.mark.parametrize("state", ["canary", "live"])
def test_a_candidate_that_was_refused_since_somebody_looked_serves_nobody(world: World, state: ReleaseState) -> None:
    chain = world.chain("a")
    chain.lead()
    with world.store.work() as work:
        work.policies.put_verdict(base_ref(2), GateVerdict(action="refuse", why="its turns are excluded"))
    with pytest.raises(Conflict, match="version 2 was refused meanwhile: its turns are excluded"):
        chain.write(0, [world.step(2, state)])
    chain.write(0, [world.step(2, "rejected")])
    assert world.history() == [(2, "rejected")]


def test_what_fails_besides_takes_the_steps_back(world: World) -> None:
    chain = world.chain("a")
    chain.lead()

    def fail(_: object) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        chain.write(0, [world.step(1, "live")], fail)
    assert world.history() == []


@pytest.mark.parametrize(
    "states", [("rejected", "live"), ("rejected", "canary"), ("live", "canary"), ("live", "rejected")]
)
def test_steps_that_make_no_sense_are_a_programmers_error(world: World, states: tuple[ReleaseState, ...]) -> None:
    chain = world.chain("a")
    chain.lead()
    chain.write(0, [world.step(1, states[0])])
    with pytest.raises(AssertionError, match=f"{states[1]} does not follow {states[0]}"):
        chain.write(1, [world.step(1, states[1])])


def test_the_log_is_told_once_and_in_order(world: World) -> None:
    chain = world.chain("a")
    chain.lead()
    chain.write(0, [world.step(1, "live")])
    chain.write(1, [world.step(1, "retired"), world.step(2, "live")])
    assert (chain.announce(), chain.announce()) == (3, 0)
    assert sorted(world.told()) == [(1, "live"), (1, "retired"), (2, "live")]


def test_what_a_controller_that_ended_did_not_tell_the_next_one_tells(world: World) -> None:
    first, second = world.chain("a"), world.chain("b")
    first.lead()
    first.write(0, [world.step(1, "live")])
    world.clock.advance(TTL_S + 1)
    second.lead()
    assert second.announce() == 1
    with pytest.raises(Fenced):
        first.announce() or first.write(1)
    assert world.told() == [(1, "live")]
