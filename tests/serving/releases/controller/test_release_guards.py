"""A version released directly has no canary: when its turns prove broken, it is rolled back."""

from collections.abc import Callable
from typing import Any

import pytest
from memory_engine import FINE
from numbered import numbered
from planted import alarm, plant
from release_world import ReleaseWorld

from core import telemetry
from core.events import Topic
from serving.releases.canaries.guards import ALARMED

MakeWorld = Callable[..., ReleaseWorld]


@pytest.fixture
def world(start_world: MakeWorld) -> ReleaseWorld:
    """Return a world whose anchor serves well."""
    world = start_world()
    served(world, 1)
    return world


def served(world: ReleaseWorld, version: int, turns: int = 60, **fields: Any) -> None:
    plant(world, turns, version=version, **fields)
    world.pass_time(1)


BROKEN = [
    ({"finish_reason": "error"}, "error_rate"),
    ({"broken_calls": 1}, "invalid_tool_calls"),
    ({"text": ""}, "empty_answers"),
    ({"finish_reason": "length"}, "over_long_answers"),
]


@pytest.mark.parametrize(("fields", "guard"), BROKEN)
def test_a_release_that_breaks_is_taken_back(world: ReleaseWorld, fields: dict[str, Any], guard: str) -> None:
    tools = {"tools": ({"name": "run"},)}
    rollbacks = _rollbacks()
    world.release()
    served(world, 1, **tools)
    assert world.live == 2
    served(world, 2, **(tools | fields))
    assert world.states() == {1: "live", 2: "rolled_back"}
    assert world.why(2).startswith(f"{guard} in write: ")
    assert {(r.version, r.state, r.by) for r in world.history()[-2:]} == {
        (2, "rolled_back", "guard"),
        (1, "live", "guard"),
    }
    assert world.check_one_lives() == 1
    assert _rollbacks() == rollbacks + 1
    child = world.publish(2)
    world.run()
    assert world.states()[child] == "rejected"
    assert world.release(1) == child + 1, "another may serve"


def test_a_release_that_does_well_stays(world: ReleaseWorld) -> None:
    world.release()
    served(world, 2)
    served(world, 2, 3, finish_reason="error")
    served(world, 2, finish_reason="abort", text="")
    assert world.check_one_lives() == 2


def test_what_was_as_bad_before_is_not_the_new_versions_fault(start_world: MakeWorld) -> None:
    world = start_world(settings={"release.canary.guard_turns": 50})
    served(world, 1, 100, finish_reason="error")
    world.release()
    served(world, 2, 100, finish_reason="error")
    assert world.check_one_lives() == 2


def test_a_version_that_served_nobody_yet_is_not_to_blame(world: ReleaseWorld) -> None:
    served(world, 1, 100, finish_reason="error")
    world.release()
    world.pass_time(2)
    assert world.check_one_lives() == 2


def test_workloads_are_compared_each_with_itself(world: ReleaseWorld) -> None:
    """Another mix of workloads does not count against a version."""
    served(world, 1, workload="commit", finish_reason="length")
    world.release()
    served(world, 2, 200, workload="commit", finish_reason="length")
    assert world.check_one_lives() == 2
    served(world, 2, workload="write", finish_reason="length")
    assert world.check_one_lives() == 1


def test_history_is_no_evidence(make_world: MakeWorld) -> None:
    """The log holds turns from before any controller judged."""
    world = make_world()
    plant(world, 60, version=1)
    plant(world, 60, version=2, finish_reason="error")
    world.start()
    world.release()
    world.pass_time(2)
    assert world.check_one_lives() == 2


def test_the_first_version_has_nothing_before_it(world: ReleaseWorld) -> None:
    served(world, 1, 100, finish_reason="error")
    assert [(r.version, r.state) for r in world.history()] == [(1, "live")]


def test_a_pinned_version_stays(world: ReleaseWorld) -> None:
    world.release()
    world.carry_out("pin", 2)
    served(world, 2, 100, finish_reason="error")
    assert world.check_one_lives() == 2


def test_a_rollback_is_not_followed_by_another(world: ReleaseWorld) -> None:
    """Requests still in flight on the version rolled back do not count against the one before it."""
    world.release()
    served(world, 2)
    world.release(2)
    served(world, 3, finish_reason="error")
    assert world.check_one_lives() == 2
    for _ in range(3):
        served(world, 3, 30, finish_reason="error")
        served(world, 2, 30)
    assert world.states() == {1: "retired", 2: "live", 3: "rolled_back"}


def test_an_alarm_takes_one_version_back(world: ReleaseWorld) -> None:
    """While the alarm stays open, no earlier version is rolled back for it."""
    world.release()
    world.release(2)
    world.log.append_blocking(Topic.ALARMS, [alarm(world)])
    world.pass_time(1)
    assert world.check_one_lives() == 2
    assert world.why(3) == ALARMED
    world.log.append_blocking(Topic.ALARMS, [alarm(world, state="acknowledged")])
    world.pass_time(3)
    assert world.check_one_lives() == 2
    world.replace_controller()
    world.pass_time(3)
    assert world.check_one_lives() == 2
    world.log.append_blocking(Topic.ALARMS, [alarm(world, "another")])
    world.pass_time(1)
    assert world.check_one_lives() == 1


def test_an_alarm_that_is_closed_is_none(world: ReleaseWorld) -> None:
    world.release()
    alarms = [alarm(world), alarm(world, state="closed"), alarm(world, "b", severity="warning")]
    world.log.append_blocking(Topic.ALARMS, alarms)
    world.pass_time(2)
    assert world.check_one_lives() == 2


def test_a_version_on_its_way_is_judged_when_it_is_live(start_world: MakeWorld) -> None:
    """Half of the fleet serves it; the version that it replaces is not rolled back for its faults."""
    world = start_world("a", "b", "c")
    served(world, 1)
    world.release()
    served(world, 2)
    version = world.publish(2)
    world.run(until=lambda: world.targets()["b"].serve == version)
    world.engines["b"].away = True
    served(world, version, finish_reason="error")
    assert world.live == 2
    world.engines["b"].away = False
    world.pass_time(3)
    assert world.states() == {1: "retired", 2: "live", 3: "rolled_back"}
    assert world.check_one_lives() == 2


def test_slow_drift_is_seen_against_those_who_stayed_on_the_first_version(start_world: MakeWorld) -> None:
    world = start_world(
        settings={"release.holdback.share": 0.2, "release.canary.maturity_s": 10.0, "release.canary.min_users": 20}
    )
    world.release()
    world.release(2)
    for reward in (0.5, 0.2):
        plant(world, 15, 0.6, first=int(100 * reward), version=1, arm="holdback")
        plant(world, 30, reward, first=int(100 * reward), version=3)
        world.pass_time(11)
        assert world.live == (3 if reward == 0.5 else 1), "too few were held back, and then enough"
    assert world.states() == {1: "live", 2: "rolled_back", 3: "rolled_back"}, "2 was not shown to be any better"
    assert "against the first version" in world.why(3)
    assert world.check_one_lives() == 1
    plant(world, 30, 0.0, first=500, version=1)
    world.pass_time(11)
    assert world.check_one_lives() == 1, "the first version is not held against itself"


def test_the_guards_order_is_kept_with_the_others(world: ReleaseWorld) -> None:
    world.release()
    served(world, 2, finish_reason="error")
    with world.store.look() as view:
        order = numbered(view.orders.get(1))
        assert view.orders.unfinished("local") == []
    assert order is not None
    assert (order.kind, order.version, order.by, order.error) == ("rollback", 1, "guard", None)


def _rollbacks() -> float:
    return telemetry.REGISTRY.get_sample_value("onward_rollbacks_total", {"by": "guard"}) or 0


# ------------------------------------------------------------------------------------------------ no finite numbers


def test_a_users_numbers_that_are_not_finite_take_no_version_back_that_its_probe_finds_well(
    world: ReleaseWorld,
) -> None:
    version = world.release()
    served(world, 1)
    served(world, 2, finish_reason="error", token_ids=(), logprobs=(), policy_versions=(), not_finite=version)
    assert world.engine.doubts == [version], "it was asked, once for all of them"
    assert world.check_one_lives() == version
    assert world.targets()["local"].doubt == (), "the doubt is over"
    served(world, 2, 3, finish_reason="error", not_finite=version)
    assert world.engine.doubts == [version], "not asked again at once"
    world.pass_time(15)
    assert world.engine.doubts == [version, version]


def test_a_version_that_fails_its_own_probe_is_taken_back(world: ReleaseWorld) -> None:
    version = world.release()
    world.engine.figures[version] = {**FINE, "finite": 0.0}
    served(world, 2, 1, finish_reason="error", not_finite=version)
    assert world.states()[version] == "rolled_back"
    assert world.why(version) == "its probe is not finite"
    assert world.check_one_lives() == 1


def test_one_engine_whose_probe_fails_is_not_the_version(start_world: MakeWorld) -> None:
    world = start_world("a", "b")
    served(world, 1)
    version = world.release()
    world.engines["a"].figures[version] = {**FINE, "finite": 0.0}
    served(world, 2, 1, finish_reason="error", not_finite=version)
    assert [world.engines[name].doubts for name in "ab"] == [[version], [version]]
    assert world.check_one_lives() == version


def test_what_no_longer_serves_is_not_doubted(world: ReleaseWorld) -> None:
    version = world.release()
    served(world, 2, 1, finish_reason="error", not_finite=1)
    assert world.engine.doubts == []
    assert world.check_one_lives() == version
