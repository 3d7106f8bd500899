"""Releases under an open alarm: nothing goes live until an operator acknowledges it or it closes."""

from collections.abc import Callable
from typing import Any

import pytest
from made_events import opening
from planted import plant_arms
from release_world import ReleaseWorld

from core.events import Topic
from serving.releases.canaries.guards import ALARMED

MakeWorld = Callable[..., ReleaseWorld]
ON = {
    "release.canary.enabled": "on",
    "release.canary.maturity_s": 10.0,
    "release.canary.min_users": 5,
    "release.canary.horizon_turns": 200,
    "release.canary.horizon_s": 1000.0,
}


def raise_alarm(world: ReleaseWorld, name: str = "a", *, told: bool = True, **fields: Any) -> None:
    """Raise an alarm as the monitors' stage does: in the store, then in the log."""
    now = world.clock.now()
    usual: dict[str, Any] = {"figures": {"recent": 0.5}, "opened_at": now, "window_start": now, "window_end": now}
    with world.store.work() as work:
        work.alarms.open(opening(name, **usual | fields))
    if told:
        tell(world, name)


def tell(world: ReleaseWorld, name: str) -> None:
    with world.store.look() as view:
        alarm = view.alarms.get(name)
    assert alarm is not None
    world.log.append_blocking(Topic.ALARMS, [alarm.event()])


def acknowledge(world: ReleaseWorld, name: str = "a") -> None:
    with world.store.work() as work:
        work.alarms.acknowledge(name, "ops", None, world.clock.now())
    tell(world, name)


def close(world: ReleaseWorld, name: str = "a") -> None:
    with world.store.work() as work:
        work.alarms.close(name, world.clock.now())
    tell(world, name)


@pytest.fixture
def held(start_world: MakeWorld) -> ReleaseWorld:
    """Return a world where 1 serves, 2 was rolled back when the alarm opened, and 3 waits."""
    world = start_world()
    world.release()
    world.pass_time(1)
    raise_alarm(world)
    world.pass_time(1)
    assert world.why(2) == ALARMED
    world.publish(1)
    world.pass_time(5)
    assert world.states() == {1: "live", 2: "rolled_back", 3: "candidate"}
    return world


def test_a_candidate_waits_until_an_operator_has_spoken(held: ReleaseWorld) -> None:
    acknowledge(held)
    held.run()
    assert held.states()[3] == "live"
    held.pass_time(3)
    assert held.check_one_lives() == 3, "what opened before it went live is not held against it"


def test_a_candidate_waits_until_the_alarm_is_closed(held: ReleaseWorld) -> None:
    close(held)
    held.run()
    assert held.check_one_lives() == 3


def test_each_alarm_must_be_answered(held: ReleaseWorld) -> None:
    raise_alarm(held, "b", opened_at=held.clock.now())
    acknowledge(held, "a")
    held.pass_time(2)
    assert held.states()[3] == "candidate"
    acknowledge(held, "b")
    held.run()
    assert held.states()[3] == "live"


@pytest.mark.parametrize("fields", [{"severity": "warning"}, {"holds": ()}, {"holds": ("training",)}])
def test_other_alarms_hold_nothing(start_world: MakeWorld, fields: dict[str, Any]) -> None:
    world = start_world()
    world.release()
    raise_alarm(world, **fields)
    world.release(2)
    world.pass_time(2)
    assert world.check_one_lives() == 3


def test_the_wait_outlives_the_controller(held: ReleaseWorld) -> None:
    held.replace_controller()
    held.pass_time(5)
    assert held.states() == {1: "live", 2: "rolled_back", 3: "candidate"}
    tell(held, "a")  # again, as who starts again may
    held.replace_controller()
    held.pass_time(5)
    assert held.states() == {1: "live", 2: "rolled_back", 3: "candidate"}


def test_an_alarm_that_is_told_again_takes_no_other_version_back(start_world: MakeWorld) -> None:
    world = start_world()
    world.release()
    world.release(2)
    world.pass_time(1)
    raise_alarm(world)
    world.pass_time(1)
    assert world.check_one_lives() == 2
    world.replace_controller()
    world.pass_time(1)
    tell(world, "a")
    world.pass_time(2)
    assert world.check_one_lives() == 2


def test_of_those_that_waited_the_newest_goes(held: ReleaseWorld) -> None:
    held.publish(1)
    held.pass_time(2)
    acknowledge(held)
    held.run()
    assert held.states() == {1: "retired", 2: "rolled_back", 3: "superseded", 4: "live"}


def test_an_operator_may_always_go_back_and_not_forth(start_world: MakeWorld) -> None:
    world = start_world()
    world.release()
    world.release(2)
    world.pass_time(1)
    raise_alarm(world)
    world.pass_time(1)
    assert world.check_one_lives() == 2
    waiting = world.publish(2)
    refused = world.obey("promote", waiting)
    assert (refused.error_code, refused.error) == ("invalid", "alarm a holds releases: acknowledge it first")
    world.carry_out("rollback", 1)
    assert world.check_one_lives() == 1
    acknowledge(world)
    world.carry_out("promote", world.publish(1))


def test_a_canary_is_taken_back_and_the_next_one_waits(start_world: MakeWorld) -> None:
    world = start_world(settings=ON)
    world.publish()
    world.run()
    assert world.states() == {1: "live", 2: "canary"}
    world.pass_time(1)
    raise_alarm(world)
    world.pass_time(1)
    assert world.states() == {1: "live", 2: "rolled_back"}
    assert (world.why(2), world.experiments()[0].verdict) == (ALARMED, "rollback")
    world.publish(1)
    world.pass_time(3)
    assert world.states()[3] == "candidate"
    acknowledge(world)
    world.pass_time(3)
    assert world.states()[3] == "canary"
    tell(world, "a")
    world.pass_time(3)
    assert world.states()[3] == "canary"


def test_a_canary_goes_before_the_log_is_told(start_world: MakeWorld) -> None:
    world = start_world(settings=ON)
    world.publish()
    world.run()
    raise_alarm(world, told=False)
    world.pass_time(1)
    assert (world.states()[2], world.why(2)) == ("rolled_back", ALARMED)


def test_a_promoted_canary_that_does_not_serve_all_yet_is_taken_back(start_world: MakeWorld) -> None:
    world = start_world("a", "b", "c", settings=ON)
    world.publish()
    world.run()
    assert world.states()[2] == "canary"
    plant_arms(world, 30, canary=0.9, live=0.1)
    world.pass_time(9.9)
    world.clock.advance(1)
    world.run(until=lambda: any(target.serve == 2 and target.lane == "live" for target in world.targets().values()))
    raise_alarm(world)
    world.pass_time(3)
    assert world.states()[2] == "rolled_back"
    assert world.check_one_lives() == 1


def test_a_version_half_of_the_fleet_serves_is_taken_back(start_world: MakeWorld) -> None:
    world = start_world("a", "b", "c")
    version = world.publish()
    world.run(until=lambda: world.targets()["a"].serve == version)
    raise_alarm(world)
    world.pass_time(3)
    assert world.check_one_lives() == 1
    assert world.states()[2] == "candidate"
    acknowledge(world)
    world.pass_time(3)
    assert world.check_one_lives() == 2
