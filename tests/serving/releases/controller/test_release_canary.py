"""Canaries, judged by planted turns and rewards in the log, at any look."""

import math
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from planted import alarm, plant, plant_arms, reward, turn
from release_world import LEASE_S, ReleaseWorld

from core import telemetry
from core.events import Topic
from core.operations.fleet import Experiment
from serving.releases.canaries.guards import ALARMED

MakeWorld = Callable[..., ReleaseWorld]
SETTINGS = {
    "release.canary.enabled": "on",
    "release.canary.maturity_s": 10.0,
    "release.canary.min_users": 5,
    "release.canary.horizon_turns": 200,
    "release.canary.horizon_s": 1000.0,
    "release.canary.switch_s": 0.0,  # those planted have one turn each
}


@pytest.fixture
def world(start_world: MakeWorld) -> ReleaseWorld:
    """Return a world where 1 is live and 2 is a canary."""
    return begin(start_world(settings=SETTINGS))


def begin(world: ReleaseWorld) -> ReleaseWorld:
    world.publish()
    world.run()
    assert world.states() == {1: "live", 2: "canary"}
    return world


def experiment(world: ReleaseWorld) -> Experiment:
    return world.experiments()[0]


def is_undecided(world: ReleaseWorld) -> bool:
    world.pass_time(1)
    return world.states()[2] == "canary" and experiment(world).verdict is None


def arm(world: ReleaseWorld, name: str, **fields: Any) -> dict[str, Any]:
    version = experiment(world).canary if name == "canary" else experiment(world).control
    return {"arm": name, "version": version, "experiment_id": experiment(world).experiment_id, **fields}


# ------------------------------------------------------------------------------------------------ verdicts


def test_a_canary_is_begun_with_all_that_a_router_needs(world: ReleaseWorld) -> None:
    begun = experiment(world)
    assert (begun.canary, begun.control, begun.share, begun.ended_at) == (2, 1, 0.2, None)
    assert len(begun.salt) >= 16
    assert world.engine.serves == 1
    assert world.statuses()["local"].pinnable == (1, 2)


def test_one_that_is_no_worse_is_promoted(world: ReleaseWorld) -> None:
    plant_arms(world, 10, canary=0.8, live=0.4)
    world.pass_time(11)
    ended = experiment(world)
    assert ended.verdict == "promote"
    assert ended.why.startswith("no worse by 0.02: reward +0.4")
    figures = {name: ended.figures[name] for name in ("turns", "users", "control_turns", "control_users")}
    assert set(figures.values()) == {10}
    assert ended.figures["low"] < ended.figures["difference"] < ended.figures["high"]
    assert 0.3 < ended.figures["difference"] < 0.5
    assert world.steps(2) == ["canary", "live"]
    assert "by its users' rewards" in world.why(2)
    assert world.check_one_lives() == 2


def test_one_that_is_worse_is_taken_back(world: ReleaseWorld) -> None:
    rollbacks = _rollbacks()
    plant_arms(world, 10, canary=0.2, live=0.7)
    child = world.publish(2)
    world.pass_time(11)
    ended = experiment(world)
    assert ended.verdict == "rollback"
    assert ended.why.startswith("worse: reward -0.5")
    assert ended.figures["high"] < 0
    assert world.steps(2) == ["canary", "rolled_back"]
    assert (world.why(2), world.history()[-2].by) == (ended.why, "guard")
    assert world.states() == {1: "live", 2: "rolled_back", child: "rejected"}
    assert world.check_one_lives() == 1
    assert _rollbacks() == rollbacks + 1
    assert world.engine.held == {1}


def test_what_cannot_be_told_apart_is_promoted_at_the_horizon(world: ReleaseWorld) -> None:
    plant_arms(world, 180, canary=0.5, live=0.5)
    for number in (-60, 60):
        plant(world, 9, number, first=1000 + number, **arm(world, "canary"))  # noise
    world.pass_time(11)
    assert is_undecided(world), "200 turns are wanted, and 198 are there"
    plant_arms(world, 10, canary=0.5, live=0.5, first=2000)
    world.pass_time(11)
    ended = experiment(world)
    assert (ended.verdict, ended.why.split(":")[0]) == ("promote", "not shown to be worse by the horizon")
    assert ended.figures["low"] < 0 < ended.figures["high"]
    assert world.check_one_lives() == 2


def test_how_many_users_it_still_needs_is_told_while_it_runs(world: ReleaseWorld) -> None:
    """To whoever asks the store: the controller may be another process."""
    begun = experiment(world)
    assert begun.until == begun.started_at + timedelta(seconds=SETTINGS["release.canary.horizon_s"])  # type: ignore[arg-type]
    for count, first in ((3, 0), (1, 1000)):
        plant_arms(world, count, canary=0.8, live=0.4, first=first)
        world.pass_time(16)
        seen = experiment(world)
        assert (seen.verdict, seen.ended_at) == (None, None)
        assert all(map(math.isfinite, seen.figures.values())), "nothing of it is JSON's null"
        figures = {name: seen.figures[name] for name in ("users", "control_users", "needed_users")}
        assert figures == {"users": first / 1000 + 3, "control_users": first / 1000 + 3, "needed_users": 5.0}


def test_without_evidence_time_decides(start_world: MakeWorld) -> None:
    world = begin(start_world(settings=SETTINGS | {"release.canary.horizon_s": 20.0}))
    world.pass_time(18)
    assert is_undecided(world)
    world.pass_time(2)
    assert experiment(world).verdict == "promote"
    assert world.check_one_lives() == 2


# ------------------------------------------------------------------------------------------------ what counts


def test_nothing_is_decided_on_too_few_users(world: ReleaseWorld) -> None:
    """The number of turns per user does not matter."""
    for _ in range(10):
        plant(world, 4, 0.0, **arm(world, "canary"))
        plant(world, 4, 1.0, **arm(world, "live"))
    world.pass_time(11)
    assert is_undecided(world)
    plant(world, 1, 0.0, first=4, **arm(world, "canary"))
    plant(world, 1, 1.0, first=4, **arm(world, "live"))
    world.pass_time(11)
    assert experiment(world).verdict == "rollback"
    assert experiment(world).figures["users"] == 5


def test_turns_count_when_they_are_of_age(world: ReleaseWorld) -> None:
    plant_arms(world, 10, canary=0.0, live=1.0)
    world.pass_time(9)
    assert world.states()[2] == "canary"
    world.pass_time(2)
    assert world.states()[2] == "rolled_back"


def test_a_reward_that_comes_late_counts(world: ReleaseWorld) -> None:
    late = [turn(world, f"late-{number}", **arm(world, "canary")) for number in range(10)]
    world.log.append_blocking(Topic.TURNS, late)
    plant(world, 10, 1.0, **arm(world, "live"))
    world.pass_time(15)
    assert is_undecided(world)
    world.log.append_blocking(Topic.REWARDS, [reward(world, each, 0.1) for each in late])
    world.pass_time(1)
    assert world.states()[2] == "rolled_back"


def test_what_is_revised_counts_as_it_is_now(world: ReleaseWorld) -> None:
    turns = [turn(world, f"user-{number}", **arm(world, "canary")) for number in range(10)]
    world.log.append_blocking(Topic.REWARDS, [reward(world, each, 0.0) for each in turns])  # before their turns
    world.log.append_blocking(Topic.TURNS, turns)
    plant(world, 10, 0.5, **arm(world, "live"))
    world.pass_time(8)
    world.log.append_blocking(Topic.REWARDS, [reward(world, each, 0.9, revision=1) for each in turns])
    world.log.append_blocking(Topic.TURNS, turns)  # told twice
    world.pass_time(4)
    ended = experiment(world)
    assert ended.verdict == "promote"
    assert ended.figures["turns"] == 10


@pytest.mark.parametrize(
    "fields",
    [
        {"arm_assigned": "live"},  # its engine was missing: for all alike
        {"arm_assigned": "canary", "arm": "live"},
        {"experiment_id": "another"},
        {"experiment_id": None},
    ],
)
def test_who_is_not_in_the_experiment_does_not_decide(world: ReleaseWorld, fields: dict[str, Any]) -> None:
    plant(world, 20, 0.0, **(arm(world, "canary") | fields))
    plant(world, 20, 1.0, **arm(world, "live"))
    world.pass_time(11)
    assert is_undecided(world)


def test_a_turn_told_twice_is_one(world: ReleaseWorld) -> None:
    """The log delivers at least once; 15 turns are too few for a guard."""
    for name, finish in (("live", "stop"), ("canary", "error")):
        turns = [turn(world, f"user-{number}", **arm(world, name, finish_reason=finish)) for number in range(15)]
        for _ in range(3):
            world.log.append_blocking(Topic.TURNS, turns)
    assert is_undecided(world)


# ------------------------------------------------------------------------------------------------ guards and holds


@pytest.mark.parametrize(
    ("fields", "guard"),
    [
        ({"finish_reason": "error"}, "error_rate"),
        ({"broken_calls": 1}, "invalid_tool_calls"),
        ({"text": " "}, "empty_answers"),
        ({"finish_reason": "length"}, "over_long_answers"),
        ({"latency_ms": 400.0}, "latency"),
    ],
)
def test_a_guard_waits_for_no_reward(world: ReleaseWorld, fields: dict[str, Any], guard: str) -> None:
    plant(world, 60, **arm(world, "live"))
    plant(world, 60, **arm(world, "canary", **fields))
    world.pass_time(1)
    assert world.states() == {1: "live", 2: "rolled_back"}
    assert world.why(2).startswith(f"{guard} in write: ")
    assert (experiment(world).verdict, experiment(world).why) == ("rollback", world.why(2))


def test_users_who_went_away_trip_no_guard(world: ReleaseWorld) -> None:
    plant(world, 60, **arm(world, "live"))
    plant(world, 60, **arm(world, "canary", finish_reason="abort", text=""))
    assert is_undecided(world)


def test_an_alarm_that_holds_releases_takes_a_canary_back(world: ReleaseWorld) -> None:
    for fields in ({"severity": "warning"}, {"holds": ("training",)}):
        world.log.append_blocking(Topic.ALARMS, [alarm(world, "x", **fields)])
        assert is_undecided(world)
    world.log.append_blocking(Topic.ALARMS, [alarm(world)])
    world.pass_time(1)
    assert world.states() == {1: "live", 2: "rolled_back"}
    assert world.why(2) == ALARMED


def test_a_held_canary_is_left_to_the_operator_and_to_the_guards(world: ReleaseWorld) -> None:
    world.carry_out("hold", 2)
    plant_arms(world, 30, canary=0.0, live=1.0)
    world.pass_time(15)
    assert is_undecided(world)
    plant(world, 60, first=100, **arm(world, "canary", finish_reason="error"))
    world.pass_time(1)
    assert world.states()[2] == "rolled_back"


def test_who_holds_lets_it_go_on(world: ReleaseWorld) -> None:
    world.carry_out("hold", 2)
    plant_arms(world, 30, canary=1.0, live=0.0)
    world.pass_time(15)
    assert is_undecided(world)
    world.carry_out("unhold", 2)
    world.pass_time(1)
    assert world.check_one_lives() == 2


# ------------------------------------------------------------------------------------------------ one after another


def test_what_comes_meanwhile_waits_and_the_newest_is_next(world: ReleaseWorld) -> None:
    for parent in (2, 3, 4):
        world.publish(parent)
    world.run()
    assert world.states() == {1: "live", 2: "canary", 3: "candidate", 4: "candidate", 5: "candidate"}
    plant_arms(world, 10, canary=1.0, live=0.0)
    world.pass_time(11)
    assert world.states() == {1: "retired", 2: "live", 3: "superseded", 4: "superseded", 5: "canary"}
    first, second = reversed(world.experiments())
    assert (second.canary, second.control) == (5, 2)
    assert second.salt != first.salt, "other users try it"
    plant_arms(world, 10, canary=0.0, live=1.0)
    world.pass_time(11)
    assert world.states()[5] == "rolled_back"
    assert world.check_one_lives() == 2


def test_a_controller_that_lost_its_lease_leaves_the_evidence_to_the_next(world: ReleaseWorld) -> None:
    """A controller that only slept would otherwise keep reading the log, and the other could not judge."""
    plant_arms(world, 10, canary=0.0, live=1.0)
    world.pass_time(5)
    sleeper = world.processes.pop()
    world.clock.advance(LEASE_S + 0.1)
    world.start_controller("other")
    world.run()
    world.processes.append(sleeper)
    world.pass_time(12)
    assert world.states() == {1: "live", 2: "rolled_back"}
    assert experiment(world).figures["turns"] == 10
    assert world.check_one_lives() == 1


def _rollbacks() -> float:
    return telemetry.REGISTRY.get_sample_value("onward_rollbacks_total", {"by": "guard"}) or 0
