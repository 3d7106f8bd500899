"""Three engines of one version each: rollouts one by one, refusals that stop them, lanes, and lost engines."""

from collections.abc import Callable

import pytest
from memory_engine import FINE
from planted import plant_arms
from release_world import ReleaseWorld

from core.ids import PolicyRef
from core.operations.fleet import ReplicaTarget

MakeWorld = Callable[..., ReleaseWorld]
CANARY = {
    "release.canary.enabled": "auto",
    "release.canary.maturity_s": 1.0,
    "release.canary.min_users": 5,
    "release.canary.switch_s": 0.0,
}


@pytest.fixture
def world(start_world: MakeWorld) -> ReleaseWorld:
    """Return a world whose anchor serves on all engines."""
    return start_world("a", "b", "c")


def serving(world: ReleaseWorld) -> list[int | None]:
    return [engine.serves for engine in world.engines.values()]


def lanes(world: ReleaseWorld) -> dict[str, tuple[str, int]]:
    return {name: (target.lane, target.serve) for name, target in world.targets().items()}


# ------------------------------------------------------------------------------------------------ rolling out


def test_a_fleet_turns_one_by_one(world: ReleaseWorld) -> None:
    """An engine gets the version once the previous one serves it; it is live when all do."""
    version, seen = world.publish(), []
    while world.live == 1:
        world.run(until=lambda: True)
        served = serving(world)
        if not seen or seen[-1] != served:
            seen.append(served)
        asked = [target.serve == version for target in world.targets().values()]
        assert asked.count(True) <= served.count(version) + 1
    assert seen == [[1, 1, 1], [2, 1, 1], [2, 2, 1], [2, 2, 2]]
    assert world.check_one_lives() == version
    assert world.states() == {1: "retired", 2: "live"}


def test_what_no_host_can_verify_is_rejected(world: ReleaseWorld) -> None:
    for engine in world.engines.values():
        engine.unfit.add(2)
    world.publish()
    world.run()
    assert world.states() == {1: "live", 2: "rejected"}
    assert world.why(2) == "a cannot load version 2"
    assert [engine.switches for engine in world.engines.values()] == [[1]] * 3
    assert world.release() == 3


def test_what_one_host_cannot_verify_serves_on_the_others(world: ReleaseWorld) -> None:
    world.engines["b"].unfit.add(2)
    world.release()
    assert serving(world) == [2, 1, 2]
    assert world.statuses()["b"].refused == {2: "b cannot load version 2"}
    world.check_chain()
    assert world.release(2) == 3
    assert world.check_one_lives() == 3


def test_what_the_first_replica_refuses_goes_no_further(world: ReleaseWorld) -> None:
    world.engines["a"].unservable.add(2)
    world.publish()
    world.run()
    assert world.states() == {1: "live", 2: "rejected"}
    assert world.why(2) == "a cannot serve version 2"
    assert [engine.switches for engine in world.engines.values()] == [[1]] * 3
    assert world.check_one_lives() == 1


def test_what_a_later_replica_refuses_serves_on_the_others(world: ReleaseWorld) -> None:
    world.engines["b"].unservable.add(2)
    world.release()
    assert serving(world) == [2, 1, 2]
    world.carry_out("rollback", 1)
    assert world.check_one_lives() == 1


def test_what_the_gate_refuses_is_served_by_nobody(world: ReleaseWorld) -> None:
    for engine in world.engines.values():
        engine.figures[2] = {**FINE, "kl_to_live": 2.0}
    world.publish()
    world.run()
    assert world.states() == {1: "live", 2: "rejected"}
    assert [engine.switches for engine in world.engines.values()] == [[1]] * 3


# ------------------------------------------------------------------------------------------------ coming and going


def test_an_engine_that_is_away_is_not_waited_for_and_turns_when_it_is_back(world: ReleaseWorld) -> None:
    world.engines["a"].away = True
    world.pass_time(2)
    world.publish()
    world.pass_time(2)
    assert world.states() == {1: "retired", 2: "live"}
    assert serving(world) == [None, 2, 2]
    world.engines["a"].away = False
    world.pass_time(2)
    assert world.check_one_lives() == 2


def test_one_that_goes_away_when_asked_is_waited_for(world: ReleaseWorld) -> None:
    """A version that crashes engines would crash them all."""
    world.publish()
    world.run(until=lambda: world.targets()["a"].serve == 2)
    world.engines["a"].away = True
    world.pass_time(3)
    assert world.states() == {1: "live", 2: "candidate"}
    assert serving(world) == [None, 1, 1]
    world.engines["a"].away = False
    world.pass_time(2)
    assert world.check_one_lives() == 2


def test_with_all_engines_away_nothing_is_decided(world: ReleaseWorld) -> None:
    for engine in world.engines.values():
        engine.away = True
    world.pass_time(2)
    world.publish()
    world.pass_time(2)
    assert world.states() == {1: "live", 2: "candidate"}
    for engine in world.engines.values():
        engine.away = False
    world.pass_time(3)
    assert world.check_one_lives() == 2


def test_a_replica_that_fell_silent_is_not_waited_for(world: ReleaseWorld) -> None:
    del world.hosts["b"]
    world.pass_time(6)
    world.publish()
    world.run()
    assert world.live == 2
    world.start_host("b")
    world.run()
    assert world.check_one_lives() == 2


def test_a_late_replica_serves_what_is_live(world: ReleaseWorld) -> None:
    world.release()
    world.start_engine("d")
    world.start_host("d")
    world.run()
    assert world.check_one_lives() == 2
    assert world.engines["d"].switches == [2]


def test_a_replica_that_leaves_is_forgotten(world: ReleaseWorld) -> None:
    world.hosts.pop("b").close()
    assert set(world.targets()) == set(world.statuses()) == {"a", "c"}
    world.publish()
    world.run()
    assert world.live == 2


def test_an_engine_started_again_behind_its_hosts_back_is_put_right(world: ReleaseWorld) -> None:
    world.release()
    world.engines["b"].restart()
    world.run()
    assert world.check_one_lives() == 2
    assert world.engines["b"].loads.count(2) == 2, "verified anew"


# ------------------------------------------------------------------------------------------------ lanes


def test_a_canary_has_an_engine_of_its_own(start_world: MakeWorld) -> None:
    world = start_world("a", "b", "c", settings=CANARY)
    world.publish()
    world.run()
    assert world.states() == {1: "live", 2: "canary"}
    assert lanes(world) == {"a": ("live", 1), "b": ("live", 1), "c": ("canary", 2)}
    assert serving(world) == [1, 1, 2]
    assert {name: status.pinnable for name, status in world.statuses().items()} == {"a": (1,), "b": (1,), "c": (2,)}
    world.replace_controller()
    world.run()
    assert serving(world) == [1, 1, 2], "another controller leaves it there"


def test_a_canary_that_is_promoted_turns_the_others_one_by_one(start_world: MakeWorld) -> None:
    world = start_world("a", "b", "c", settings=CANARY)
    world.publish()
    world.run()
    plant_arms(world, 8, canary=1.0, live=0.0)
    world.clock.advance(2)
    seen = []
    while world.live == 1:
        world.run(until=lambda: True)
        if not seen or seen[-1] != serving(world):
            seen.append(serving(world))
    assert seen == [[1, 1, 2], [2, 1, 2], [2, 2, 2]]
    assert world.check_one_lives() == 2
    assert {lane for lane, _ in lanes(world).values()} == {"live"}
    assert world.steps(2) == ["canary", "live"]


def test_a_canary_that_is_worse_loses_its_engine(start_world: MakeWorld) -> None:
    world = start_world("a", "b", "c", settings=CANARY)
    world.publish()
    world.run()
    plant_arms(world, 8, canary=0.0, live=1.0)
    world.clock.advance(2)
    world.run(until=lambda: world.targets()["c"].avoid == (2,))
    world.pass_time(1)
    assert world.states() == {1: "live", 2: "rolled_back"}
    assert world.check_one_lives() == 1


def test_a_canary_that_its_engine_cannot_serve_is_taken_back(start_world: MakeWorld) -> None:
    world = start_world("a", "b", "c", settings=CANARY)
    world.engines["c"].unservable.add(2)
    world.publish()
    world.run()
    assert world.states() == {1: "live", 2: "rolled_back"}
    (experiment,) = world.experiments()
    assert (experiment.verdict, experiment.why) == ("rollback", "c cannot serve version 2")
    assert world.check_one_lives() == 1


def test_what_an_engine_of_the_others_refused_does_not_end_a_canary(start_world: MakeWorld) -> None:
    """A canary stays even if one of its own two engines cannot serve it."""
    world = start_world("a", "b", "c", "d", settings={**CANARY, "release.canary.share": 0.5})
    world.engines["a"].unfit.add(2)
    world.engines["d"].unservable.add(2)
    world.publish()
    world.run()
    assert world.states() == {1: "live", 2: "canary"}
    assert serving(world) == [1, 1, 2, 1]


@pytest.mark.parametrize(("engines", "canary"), [(("a",), "on"), (("a",), "auto"), (("local",), "auto")])
def test_where_no_canary_can_or_need_run_versions_are_released_directly(
    start_world: MakeWorld, engines: tuple[str, ...], canary: str
) -> None:
    world = start_world(*engines, settings={"release.canary.enabled": canary})
    world.release()
    assert world.steps(2) == ["live"]
    assert world.experiments() == []


def test_who_is_held_back_stays_on_the_anchor(start_world: MakeWorld) -> None:
    """Releases, canaries, orders and another controller do not change that."""
    world = start_world("a", "b", "c", settings={"release.holdback.share": 0.1})
    seen: set[PolicyRef | None] = set()
    step = world.engines["c"].switch
    world.engines["c"].switch = lambda version: (seen.add(version), step(version))[1]
    for parent in (1, 2):
        world.publish(parent)
        world.run()
    world.carry_out("rollback", 2)
    world.replace_controller()
    world.run()
    world.carry_out("pin", 2)
    assert lanes(world) == {"a": ("live", 2), "b": ("live", 2), "c": ("holdback", 1)}
    assert serving(world) == [2, 2, 1]
    assert seen == set(), "it never left"
    world.check_chain()


def test_targets_are_written_when_they_change(world: ReleaseWorld) -> None:
    world.release()
    before: dict[str, ReplicaTarget] = world.targets()
    count = world.process.fuse.calls
    world.pass_time(1)
    assert world.targets() == before
    assert world.process.fuse.calls - count <= 3, "the lease, and how far the log was read"
