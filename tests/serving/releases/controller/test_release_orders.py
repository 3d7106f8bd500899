"""An operator's orders: what each does, why it is refused, and that nothing else changes then."""

from collections.abc import Callable, Iterator
from typing import get_args

import pytest
from changed_settings import changed
from memory_engine import FINE
from numbered import numbered
from release_world import ReleaseWorld

from core import telemetry
from core.events import GateVerdict
from core.ids import UserHash, base_ref
from core.operations.exclusions import Exclusion, Findings
from core.operations.fleet import OrderKind

MakeWorld = Callable[..., ReleaseWorld]
LIARS = frozenset((UserHash("mallory"),))


@pytest.fixture
def world(start_world: MakeWorld) -> ReleaseWorld:
    return start_world()


@pytest.fixture
def trying(start_world: MakeWorld) -> ReleaseWorld:
    """Return a world where 1 is retired, 2 is live, and 3 is a canary."""
    world = start_world()
    world.release()
    world.release_settings = changed(world.release_settings, {"canary.enabled": "on"})
    world.start()
    world.publish(2)
    world.run()
    assert world.states() == {1: "retired", 2: "live", 3: "canary"}
    return world


def refused(world: ReleaseWorld, kind: OrderKind, version: int) -> tuple[str | None, str]:
    """Give an order that is refused; return its code and reason. Nothing but the order may change."""
    before, live = world.history(), world.live
    answer = world.obey(kind, version)
    assert answer.done_at is not None
    assert (world.history(), world.live) == (before, live)
    assert {engine.serves for engine in world.engines.values()} == {live}
    return answer.error_code, answer.error or ""


# ------------------------------------------------------------------------------------------------ rollback


def test_a_rollback_takes_back_all_since(world: ReleaseWorld) -> None:
    count = _rollbacks("operator")
    for parent in (1, 2, 3):
        world.release(parent)
    world.carry_out("rollback", 3, "worse")
    assert world.states() == {1: "retired", 2: "retired", 3: "live", 4: "rolled_back"}
    assert (world.why(4), world.why(3)) == ("worse", "worse")
    assert world.engine.loads[:3] == [2, 3, 4], "it was still in memory"
    world.carry_out("rollback", 1, "worse still")
    assert world.states() == {1: "live", 2: "rolled_back", 3: "rolled_back", 4: "rolled_back"}
    assert world.check_one_lives() == 1
    steps = [(step.version, step.why) for step in world.history() if step.state == "rolled_back"]
    assert steps == [(4, "worse"), (2, "worse still"), (3, "worse still")], "what was taken back is not again"
    assert {r.by for r in world.said() if r.why in ("worse", "worse still")} == {"ada"}
    assert _rollbacks("operator") == count + 2


def test_a_rollback_may_itself_be_taken_back(world: ReleaseWorld) -> None:
    world.release()
    world.carry_out("rollback", 1, "worse")
    world.carry_out("rollback", 2, "better after all")
    assert world.states() == {1: "rolled_back", 2: "live"}
    assert world.check_one_lives() == 2
    assert world.release(parent=2) == 3


def test_a_fleet_turns_back_at_once_and_is_told_whom_to_avoid(start_world: MakeWorld) -> None:
    world = start_world("a", "b", "c")
    world.release()
    world.order("rollback", 1)
    world.run(until=lambda: {target.serve for target in world.targets().values()} == {1})
    assert {target.avoid for target in world.targets().values()} == {(2,)}
    world.run()
    assert world.check_one_lives() == 1
    assert {target.avoid for target in world.targets().values()} == {()}, "nobody serves it any more"


def test_a_rollback_to_weights_that_are_gone_is_refused(world: ReleaseWorld) -> None:
    for parent in (1, 2, 3):
        world.release(parent)
    world.weights.discard(base_ref(2))
    code, why = refused(world, "rollback", 2)
    assert code == "refused"
    assert "weights/00000002" in why
    assert world.check_one_lives() == 4


@pytest.fixture
def forgetful(start_world: MakeWorld) -> ReleaseWorld:
    """Return a world where 6 is live, and the weights of 2 and 3 are gone."""
    world = start_world(settings={"serving.versions.keep": 2, "serving.versions.all_s": 0})
    for parent in range(1, 6):
        world.release(parent)
    assert [version for version in range(1, 7) if world.has_weights(version)] == [1, 4, 5, 6]
    return world


def make_again(world: ReleaseWorld, version: int) -> None:
    """Do what the learner does for an order that waits."""
    ref, shards = base_ref(version), world.shards_at(world.directory / "again.safetensors", version)
    with world.store.work() as work:
        assert work.files.wanted() == [ref]
        work.files.keep(ref, world.weights.publish(ref, shards, None).size)


def test_a_rollback_to_weights_that_are_gone_waits_until_they_are_made_again(forgetful: ReleaseWorld) -> None:
    """Meanwhile nothing moves because of it, and everything else goes on, over a change of controllers too."""
    order = forgetful.order("rollback", 2)
    forgetful.pass_time(10)
    assert (forgetful.answer(order).done_at, forgetful.live) == (None, 6)
    assert forgetful.engine.held == {5, 6}
    forgetful.replace_controller()
    assert forgetful.release(6) == 7
    make_again(forgetful, 2)
    forgetful.run()
    assert forgetful.answer(order).error is None
    assert forgetful.check_one_lives() == 2
    assert forgetful.states() == {1: "retired", 2: "live"} | dict.fromkeys(range(3, 8), "rolled_back")


def test_an_order_that_waits_is_taken_back_by_one_for_what_serves(forgetful: ReleaseWorld) -> None:
    """Which is done by that, and not refused since the version serves already: so an undo says what it did."""
    order = forgetful.order("rollback", 2)
    forgetful.pass_time(3)
    forgetful.carry_out("rollback", 6)
    taken_back = forgetful.answer(order)
    assert taken_back.error_code == "refused"
    assert taken_back.error == "taken back before version 2 was made again"
    with forgetful.store.look() as view:
        assert view.files.wanted() == []
    forgetful.pass_time(10)
    assert forgetful.check_one_lives() == 6
    assert refused(forgetful, "rollback", 6) == ("invalid", "version 6 serves already")


def test_from_an_earlier_version_one_goes_back_to_the_one_before_it(forgetful: ReleaseWorld) -> None:
    """Engines are not asked to hold what is gone: they would refuse it once it is made again."""
    forgetful.carry_out("rollback", 4)
    assert forgetful.statuses()["local"].refused == {}
    order = forgetful.order("rollback", 3)
    forgetful.run()
    make_again(forgetful, 3)
    forgetful.run()
    assert forgetful.answer(order).error is None
    assert forgetful.check_one_lives() == 3


@pytest.mark.parametrize("kind", ["rollback", "pin"])
def test_nobody_goes_back_to_what_an_exclusion_left_behind(world: ReleaseWorld, kind: OrderKind) -> None:
    """Though its weights are kept, and an engine may hold it: the learner would go on from what was taken out."""
    for parent in (1, 2, 3):
        world.release(parent)
    world.carry_out("rollback", 2, "they lie")
    found = Findings(left=(base_ref(3),))
    with world.store.work() as work:
        number = work.exclusions.add(Exclusion(users=LIARS), "they lie", "ada", world.clock.now(), found)
    for version in (3, 4):
        code, why = refused(world, kind, version)
        assert code == "invalid"
        assert why == (
            f"version {version} serves no more: exclusion {number} took out what it, or a version before it, learned: "
            "they lie; take one from before it"
        )
    world.carry_out(kind, 1)
    assert world.live == 1


def test_what_cannot_be_made_again_is_refused_before_anything_moves(forgetful: ReleaseWorld) -> None:
    """So is what the learner finds it cannot make, what no learner makes in time, and what another order overtakes."""
    with forgetful.store.work() as work:
        work.files.give_up(base_ref(2), "3 of its 8 turns are no longer in the store")
    gone = "the weights of version 2 are gone: 3 of its 8 turns are no longer in the store"
    for version in (2, 3):  # which is made upon it
        code, why = refused(forgetful, "rollback", version)
        assert (code, why) == ("refused", gone.replace("version 2", f"version {version}"))
    with forgetful.store.work() as work:
        work.files.try_again()
    order = forgetful.order("pin", 3)
    forgetful.run()
    with forgetful.store.work() as work:
        work.files.give_up(base_ref(3), "it differs")
    forgetful.run()
    assert forgetful.answer(order).error == "the weights of version 3 are gone: it differs"
    order = forgetful.order("rollback", 2)
    forgetful.pass_time(forgetful.release_settings.order_timeout_s + 10, 5)
    assert "no learner made version 2 again in" in (forgetful.answer(order).error or "")
    order = forgetful.order("rollback", 2)
    forgetful.run()
    forgetful.carry_out("rollback", 4)
    assert forgetful.answer(order).error == "version 2 was not made again before the next order"
    assert forgetful.check_one_lives() == 4
    with forgetful.store.look() as view:
        assert view.files.wanted() == []


def test_a_rollback_takes_a_canary_back(trying: ReleaseWorld) -> None:
    trying.carry_out("rollback", 2, "users complain")
    assert trying.states() == {1: "retired", 2: "live", 3: "rolled_back"}
    (experiment,) = trying.experiments()
    assert (experiment.verdict, experiment.why) == ("stopped", "users complain")
    assert experiment.ended_at is not None
    assert 3 not in trying.engine.held
    assert trying.check_one_lives() == 2
    assert trying.steps(2) == ["live"], "it served all along"


def test_a_rollback_past_the_live_version_takes_a_running_canary_with_it(trying: ReleaseWorld) -> None:
    trying.carry_out("rollback", 1)
    assert trying.states() == {1: "live", 2: "rolled_back", 3: "rolled_back"}
    assert trying.experiments()[0].verdict == "stopped"
    assert trying.check_one_lives() == 1


# ------------------------------------------------------------------------------------------------ promote


def test_promotion_waits_for_no_distance(start_world: MakeWorld) -> None:
    world = start_world(settings={"serving.versions.min_swap_interval_s": 100})
    world.release()
    world.publish(2)
    world.run()
    world.carry_out("promote", 3, "urgent")
    assert world.states() == {1: "retired", 2: "retired", 3: "live"}
    assert (world.why(3), world.history()[-1].by) == ("urgent", "ada")
    assert world.check_one_lives() == 3


def test_what_was_superseded_can_be_promoted(world: ReleaseWorld) -> None:
    world.publish()
    world.publish()
    world.run()
    assert world.states() == {1: "retired", 2: "superseded", 3: "live"}
    world.carry_out("promote", 2)
    assert world.states() == {1: "retired", 2: "live", 3: "retired"}
    assert world.check_one_lives() == 2


def test_a_promoted_canary_ends_its_experiment(trying: ReleaseWorld) -> None:
    trying.carry_out("promote", 3, "seen enough")
    assert trying.states() == {1: "retired", 2: "retired", 3: "live"}
    (experiment,) = trying.experiments()
    assert (experiment.verdict, experiment.why) == ("promote", "seen enough")
    assert trying.check_one_lives() == 3


def test_who_promotes_another_than_the_canary_is_told_to_decide_on_it_first(trying: ReleaseWorld) -> None:
    trying.publish(2)
    trying.run()
    assert refused(trying, "promote", 4) == ("invalid", "version 3 is a canary: promote it or roll it back first")
    assert trying.states()[3] == "canary"


def test_the_gate_is_asked_whoever_promotes(start_world: MakeWorld) -> None:
    world = start_world(settings={"serving.versions.min_swap_interval_s": 100})
    world.release()
    world.engine.figures[3] = {**FINE, "finite": 0.0}
    world.publish(2)
    world.run()
    assert refused(world, "promote", 3) == ("refused", "its outputs are not finite")
    assert world.states() == {1: "retired", 2: "live", 3: "candidate"}


def test_a_candidate_that_was_refused_is_not_promoted(world: ReleaseWorld) -> None:
    world.publish()
    with world.store.work() as work:
        work.policies.put_verdict(base_ref(2), GateVerdict(action="refuse", why="its turns are excluded"))
    answer = world.obey("promote", 2)
    assert (answer.error_code, answer.error) == ("invalid", "version 2 was refused: its turns are excluded")
    world.run()
    assert world.states() == {1: "live", 2: "rejected"}


def test_what_no_host_can_verify_is_not_promoted(start_world: MakeWorld) -> None:
    world = start_world(settings={"serving.versions.min_swap_interval_s": 100})
    world.release()
    world.engine.unfit.add(3)
    world.publish(2)
    assert refused(world, "promote", 3) == ("refused", "local cannot load version 3")


# ------------------------------------------------------------------------------------------------ hold and pin


def test_what_is_held_waits_and_the_rest_goes_on(world: ReleaseWorld) -> None:
    for _ in range(2):
        world.publish()
    world.carry_out("hold", 3)
    assert world.states() == {1: "retired", 2: "live", 3: "candidate"}
    world.release(2)
    assert world.states()[3] == "candidate", "not superseded either"
    world.carry_out("unhold", 3)
    assert world.states() == {1: "retired", 2: "retired", 3: "live", 4: "retired"}


def test_promotion_ends_a_hold(start_world: MakeWorld) -> None:
    world = start_world(settings={"serving.versions.min_swap_interval_s": 100})
    world.release()
    world.publish(2)
    world.carry_out("hold", 3)
    world.carry_out("promote", 3)
    assert world.check_one_lives() == 3
    assert _switches(world) == (None, ())


def test_a_held_candidate_under_way_is_left(start_world: MakeWorld) -> None:
    world = start_world("a", "b")
    world.publish()
    world.run(until=lambda: world.engines["a"].serves == 2)
    world.carry_out("hold", 2)
    assert world.states() == {1: "live", 2: "candidate"}
    assert world.check_one_lives() == 1


def test_a_pinned_version_serves_and_nothing_is_released(world: ReleaseWorld) -> None:
    world.release()
    world.carry_out("pin", 1, "a fair")
    assert world.states() == {1: "live", 2: "retired"}, "nothing was wrong with it"
    for _ in range(2):
        world.publish(2)
    world.run()
    assert world.check_one_lives() == 1
    assert _switches(world)[0] == 1
    world.carry_out("unpin", 1, "it is over")
    assert world.states() == {1: "retired", 2: "retired", 3: "superseded", 4: "live"}, "the newest goes"


def test_the_live_version_is_pinned_as_it_is(world: ReleaseWorld) -> None:
    before = world.history()
    world.carry_out("pin", 1)
    world.publish()
    world.run()
    assert (world.history(), _switches(world)[0]) == (before, 1)


def test_a_rollback_moves_the_pin(world: ReleaseWorld) -> None:
    world.release()
    world.carry_out("pin", 2)
    world.carry_out("rollback", 1)
    assert _switches(world)[0] == 1
    world.publish(1)
    world.run()
    assert world.check_one_lives() == 1


def test_a_restart_knows_of_pins_and_holds(start_world: MakeWorld) -> None:
    world = start_world()
    world.publish()
    world.carry_out("hold", 2)
    world.carry_out("pin", 1)
    world.publish()
    world.start()
    assert world.states() == {1: "live", 2: "candidate", 3: "candidate"}
    world.carry_out("unpin", 1)
    assert world.states() == {1: "retired", 2: "candidate", 3: "live"}


# ------------------------------------------------------------------------------------------------ refusals


def test_a_version_that_is_none_is_unknown(world: ReleaseWorld) -> None:
    with world.store.work() as work:
        allocated = work.policies.allocate(world.clock.now())
    for kind in get_args(OrderKind):
        for version in (99, allocated.version):
            assert refused(world, kind, version) == ("unknown_version", f"no version {version}")


def test_what_makes_no_sense_is_invalid(start_world: MakeWorld) -> None:
    world = start_world(settings={"serving.versions.min_swap_interval_s": 100})
    world.engine.unfit.add(2)
    world.publish()
    world.run()
    world.release()
    world.publish(3)
    world.run()
    assert world.states() == {1: "retired", 2: "rejected", 3: "live", 4: "candidate"}
    cases: list[tuple[OrderKind, int, str]] = [
        ("rollback", 3, "version 3 serves already"),
        ("rollback", 4, "version 4 never served"),
        ("rollback", 2, "version 2 never served"),
        ("promote", 1, "version 1 is retired: a canary or a candidate can be promoted"),
        ("promote", 2, "version 2 is rejected: a canary or a candidate can be promoted"),
        ("promote", 3, "version 3 serves already"),
        ("hold", 1, "version 1 is retired: a canary or a candidate can be held"),
        ("hold", 2, "version 2 is rejected: a canary or a candidate can be held"),
        ("hold", 3, "version 3 is live: a canary or a candidate can be held"),
        ("unhold", 4, "version 4 is not held"),
        ("pin", 4, "version 4 never served: promote it first"),
        ("unpin", 3, "version 3 is not pinned"),
    ]
    for kind, version, why in cases:
        assert refused(world, kind, version) == ("invalid", why)


def test_a_pin_allows_neither_canary_nor_promotion(trying: ReleaseWorld) -> None:
    code, why = refused(trying, "pin", 1)
    assert (code, why) == ("invalid", "version 3 is a canary: promote it or roll it back first")
    trying.carry_out("rollback", 2)
    trying.carry_out("pin", 2)
    trying.publish(2)
    assert refused(trying, "promote", 4) == ("invalid", "version 2 is pinned: unpin it first")


@pytest.mark.parametrize("kind", ["rollback", "promote", "pin"])
def test_where_no_engine_can_serve_it_in_time_it_is_unavailable(start_world: MakeWorld, kind: OrderKind) -> None:
    world = start_world(settings={"release.order_timeout_s": 5.0, "serving.versions.min_swap_interval_s": 100})
    world.release()
    world.publish(2)
    world.run()
    before = world.history()
    world.engine.away = True
    begun_s = world.clock.monotonic()
    order_id = world.order(kind, 3 if kind == "promote" else 1)
    world.pass_time(4)
    assert world.answer(order_id).done_at is None, "it may come back"
    while (answer := world.answer(order_id)).done_at is None:
        world.pass_time(1)
    assert answer.error_code == "unavailable"
    assert world.clock.monotonic() < begun_s + 600, "it tries to load it, which does not count once it failed"
    assert world.history() == before
    world.engine.away = False
    world.pass_time(2)
    assert world.check_one_lives() == 2, "the order is over"


@pytest.fixture
def slow(forgetful: ReleaseWorld) -> Iterator[ReleaseWorld]:
    """Return a world where 6 is live, 4 is kept, and the engine that begins to load it does not come to an end."""
    assert forgetful.engine.held == {5, 6}
    forgetful.engine.may_load.clear()
    yield forgetful
    forgetful.engine.may_load.set()


def while_it_loads(world: ReleaseWorld, seconds: int) -> None:
    for _ in range(0, seconds, 5):
        world.clock.advance(5)
        world.round()


def test_an_order_waits_for_an_engine_that_loads_its_version(slow: ReleaseWorld) -> None:
    """On a busy machine that takes longer than an engine has that does nothing about it."""
    order = slow.order("rollback", 4)
    while_it_loads(slow, 5 * int(slow.release_settings.order_timeout_s))
    assert slow.statuses()["local"].loading == 4
    assert slow.answer(order).done_at is None
    slow.engine.may_load.set()
    slow.run()
    assert slow.answer(order).error is None
    assert slow.check_one_lives() == 4
    assert slow.statuses()["local"].loading is None


def test_an_order_does_not_wait_for_ever(slow: ReleaseWorld) -> None:
    """Nothing else is released meanwhile."""
    order = slow.order("rollback", 4)
    while_it_loads(slow, 1100)
    assert slow.answer(order).error_code == "unavailable"
    assert slow.answer(order).error == "no engine serves version 4 yet: local loads version 4"
    slow.engine.may_load.set()
    slow.run()
    assert slow.check_one_lives() == 6


def test_orders_are_carried_out_one_after_another(world: ReleaseWorld) -> None:
    for parent in (1, 2):
        world.release(parent)
    orders = [world.order("rollback", 2), world.order("rollback", 99), world.order("rollback", 1)]
    world.run()
    assert [world.answer(order).error_code for order in orders] == [None, "unknown_version", None]
    assert [(r.version, r.state) for r in world.history()[-4:]] == [
        (3, "rolled_back"),
        (2, "live"),
        (2, "rolled_back"),
        (1, "live"),
    ]
    with world.store.look() as view:
        assert view.orders.unfinished("local") == []


def _switches(world: ReleaseWorld) -> tuple[int | None, tuple[int, ...]]:
    with world.store.look() as view:
        found = numbered(view.fleet.switches("local"))
    return found.pinned, found.held


def _rollbacks(by: str) -> float:
    return telemetry.REGISTRY.get_sample_value("onward_rollbacks_total", {"by": by}) or 0
