"""The controller ends before each of its writes in turn, and the next one finishes the work."""

from collections.abc import Callable

import pytest
from memory_engine import FINE
from mortal import Crash
from planted import plant_arms
from release_world import ReleaseWorld
from stepping import step

from core.operations.fleet import Experiment

MakeWorld = Callable[..., ReleaseWorld]
MOST = 40
FLEETS = [("local",), ("a", "b", "c")]
CANARY = {
    "release.canary.enabled": "on",
    "release.canary.maturity_s": 1.0,
    "release.canary.min_users": 5,
    "release.canary.switch_s": 0.0,
    "serving.versions.keep": 1000,
}


def cut_off(world: ReleaseWorld, at: int) -> bool:
    """Return whether the controller ended before its call number `at` from now on.

    Calls are transactions, appends, commits and discards. If it ended, the next one takes over once the lease has
    expired."""
    world.process.fuse.set(at)
    try:
        world.run()
    except Crash:
        world.replace_controller()
        world.run()
        return True
    world.process.fuse.at = None
    return False


@pytest.mark.parametrize("engines", FLEETS)
def test_a_release(start_world: MakeWorld, engines: tuple[str, ...]) -> None:
    world = start_world(*engines, settings={"serving.versions.keep": 2, "serving.versions.all_s": 0})
    live = world.release(world.release())
    for at in (*range(5 + len(engines) + 3), MOST):
        version = world.publish(live)
        crashed = cut_off(world, at)
        assert world.check_one_lives() == version, at
        assert world.steps(version) == ["live"], at
        assert world.states()[live] == "retired", at
        live = version
        if not crashed:
            break
    assert not crashed, "targets, chain, discard, log and outbox were cut off"
    assert not world.has_weights(2)


def test_what_was_served_without_a_word_is_said_before_anything_newer_is_tried(start_world: MakeWorld) -> None:
    """A version may serve when its controller ends, and a newer candidate does not make it superseded."""
    world = start_world("a", "b", settings={"serving.versions.keep": 1000})
    live = 1
    for at in range(7):  # targets thrice, chain, log, outbox, targets
        first = world.publish(live)
        world.process.fuse.set(at)
        with pytest.raises(Crash):
            world.run()
        for _ in range(3):  # the hosts go on with what they were told
            for host in world.hosts.values():
                step(host, 0.01)
        live = world.publish(live)
        world.replace_controller()
        world.run()
        assert world.check_one_lives() == live, at
        served = any(first in engine.switches for engine in world.engines.values())
        assert world.steps(first) == (["live", "retired"] if served else ["superseded"]), at


def test_a_refusal(start_world: MakeWorld) -> None:
    world = start_world()
    for at in range(MOST):
        version = world.publish()
        world.engine.figures[version] = {**FINE, "finite": 0.0}
        crashed = cut_off(world, at)
        assert world.check_one_lives() == 1, at
        assert world.steps(version) == ["rejected"], at
        if not crashed:
            break
    assert at >= 4


def test_superseding(start_world: MakeWorld) -> None:
    world = start_world(settings={"serving.versions.keep": 1000})
    live = 1
    for at in range(MOST):
        versions = [world.publish(live) for _ in range(3)]
        crashed = cut_off(world, at)
        assert world.check_one_lives() == versions[-1], at
        assert [world.steps(version) for version in versions] == [["superseded"], ["superseded"], ["live"]], at
        live = versions[-1]
        if not crashed:
            break
    assert at >= 6


@pytest.mark.parametrize("engines", FLEETS)
def test_a_rollback(start_world: MakeWorld, engines: tuple[str, ...]) -> None:
    world = start_world(*engines)
    for at in range(MOST):
        version = world.release()
        order = world.order("rollback", 1)
        crashed = cut_off(world, at)
        assert world.check_one_lives() == 1, at
        assert world.steps(version) == ["live", "rolled_back"], at
        answer = world.answer(order)
        assert (answer.done_at is not None, answer.error) == (True, None), at
        assert {target.avoid for target in world.targets().values()} == {()}, at
        if not crashed:
            break
    assert at >= 5, "targets, chain and order, log, outbox and targets were cut off"


def test_orders_of_every_other_kind(start_world: MakeWorld) -> None:
    """Each is carried out once, and completely."""
    world = start_world(settings={"serving.versions.min_swap_interval_s": 1e9})
    live = world.release()
    for at in range(MOST):
        version = world.publish(live)
        orders = [world.order("hold", version), world.order("promote", version), world.order("pin", live)]
        orders.append(world.order("unpin", live))
        crashed = cut_off(world, at)
        assert [world.answer(order).error for order in orders] == [None] * 4, at
        assert world.check_one_lives() == live, at
        assert world.steps(version) == ["live", "retired"], at
        if not crashed:
            break
    assert at >= 10


@pytest.mark.parametrize(("canary", "verdict"), [(1.0, "promote"), (0.0, "rollback")])
def test_a_canary(start_world: MakeWorld, canary: float, verdict: str) -> None:
    """The canary is started once and judged once, even by a controller that did not start it."""
    world = start_world(settings=CANARY)
    live = 1
    for at in range(MOST):
        version = world.publish(live)
        began = cut_off(world, at)
        assert world.states()[version] == "canary", at
        assert [each.canary for each in world.experiments() if each.ended_at is None] == [version], at
        plant_arms(world, 8, canary=canary, live=0.5, first=100 * at)
        world.clock.advance(2)
        ended = cut_off(world, at)
        world.pass_time(1)
        assert _verdict(world.experiments()[0]) == (version, verdict), at
        assert world.steps(version) == ["canary", "live" if verdict == "promote" else "rolled_back"], at
        live = version if verdict == "promote" else live
        assert world.check_one_lives() == live, at
        if not began and not ended:
            break
    assert len(world.experiments()) == at + 1, "one for each canary"
    assert at >= 6


def _verdict(experiment: Experiment) -> tuple[int, str | None]:
    assert experiment.ended_at is not None
    assert "reward" in experiment.why
    assert experiment.figures["turns"] == experiment.figures["control_turns"] == 8
    return experiment.canary, experiment.verdict


def test_a_start(start_world: MakeWorld) -> None:
    """The next controller may end as well, and the one after it."""
    world = start_world(settings={"serving.versions.keep": 1000})
    live = 1
    for at in range(MOST):
        versions = [world.publish(live), world.publish(live)]
        world.replace_controller()
        crashed = [cut_off(world, each) for each in (at, at, at)]
        assert world.check_one_lives() == versions[-1], at
        assert world.steps(versions[0]) == ["superseded"], at
        live = versions[-1]
        if not any(crashed):
            break
