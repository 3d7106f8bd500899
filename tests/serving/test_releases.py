"""Which version serves: candidates through the gate and back again, whatever fails or ends in between."""

import math
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from release_world import FINE, START, VOCABULARY, Crash, Fuse, ReleaseWorld

from core import telemetry
from core.errors import InvalidRequest, NotFound, WeightsError
from core.events import PolicyVersion, Topic
from core.ids import Version
from core.store import policies
from core.weights_digest import digest_of_shards
from serving.releases.timing import LoopTimer

MakeWorld = Callable[..., ReleaseWorld]


@pytest.fixture
def make_world(tmp_path: Path) -> Iterator[MakeWorld]:
    worlds: list[ReleaseWorld] = []

    def make(**settings: Any) -> ReleaseWorld:
        worlds.append(ReleaseWorld(tmp_path / f"world-{len(worlds)}", **settings))
        return worlds[-1]

    yield make
    for world in worlds:
        world.close()


@pytest.fixture
def world(make_world: MakeWorld) -> ReleaseWorld:
    """Started; the anchor serves."""
    world = make_world()
    world.start()
    return world


def steps(world: ReleaseWorld, version: int) -> list[str]:
    """A version's states in the store, in order."""
    return [release.state for release in world.history() if release.version == version]


# ------------------------------------------------------------------------------------------------ the anchor


def test_the_anchor_is_made_and_released_once(make_world: MakeWorld) -> None:
    world = make_world()
    refs = [world.anchor() for _ in range(3)]
    assert len(set(refs)) == 1
    assert refs[0].version == 1
    assert refs[0].digest == digest_of_shards([world.model / "model.safetensors"])
    assert [(r.version, r.state, r.by) for r in world.history()] == [(1, "live", "start")]
    assert [(r.version, r.state, r.by) for r in world.said()] == [(1, "live", "start")]
    assert [event.version for event in world.logged(Topic.POLICIES) if isinstance(event, PolicyVersion)] == [1]
    assert world.start().live == 1


def test_an_anchor_that_was_cut_short_is_completed(make_world: MakeWorld) -> None:
    """Whichever step was the first not to be taken; the log, too, then knows what the store knows."""
    for at in range(20):
        world, fuse = make_world(), Fuse(at)
        try:
            world.anchor(fuse)
        except Crash:
            ref = world.anchor()
        else:
            break
        assert world.states() == {1: "live"}, at
        assert steps(world, 1) == ["live"], at
        assert {(r.version, r.state) for r in world.said()} == {(1, "live")}, at
        known = [event for event in world.logged(Topic.POLICIES) if isinstance(event, PolicyVersion)]
        assert {(policy.version, policy.digest) for policy in known} == {(1, ref.digest)}, at
        assert digest_of_shards(world.weights.open(ref)) == ref.digest
    assert at == 6, "every write was cut off once"


def test_a_model_without_weights_is_named(make_world: MakeWorld) -> None:
    world = make_world()
    (world.model / "model.safetensors").unlink()
    with pytest.raises(WeightsError, match=str(world.model)):
        world.anchor()


# ------------------------------------------------------------------------------------------------ candidates


def test_a_candidate_that_passes_serves(world: ReleaseWorld) -> None:
    """The one before stays in memory for a rollback, older ones go."""
    assert world.release() == 2
    assert world.states() == {1: "retired", 2: "live"}
    assert set(world.engine.loaded()) == {1, 2}
    assert world.release(parent=2) == 3
    assert world.states() == {1: "retired", 2: "retired", 3: "live"}
    assert set(world.engine.loaded()) == {2, 3}
    assert world.engine.switches == [1, 2, 3]
    assert world.engine.loads == [2, 3]
    assert world.check_one_lives() == 3
    said = [(r.version, r.state) for r in world.said() if r.by == "gate"]
    assert sorted(said) == [(1, "retired"), (2, "live"), (2, "retired"), (3, "live")]


def test_the_newest_of_several_that_wait_goes(world: ReleaseWorld) -> None:
    for parent in (1, 2, 3):
        world.publish(parent)
    world.run()
    assert world.states() == {1: "retired", 2: "superseded", 3: "superseded", 4: "live"}
    assert world.engine.loads == [4], "nobody loads what will not serve"
    assert "version 4" in world.why(3)


def test_swaps_keep_their_distance(make_world: MakeWorld) -> None:
    """The first may come at once; those that come too early wait, and the newest of them is next."""
    world = make_world(min_swap_interval_s=10)
    world.start()
    world.release()
    for seconds in (0.0, 5.0, 4.9):
        world.clock.advance(seconds)
        world.publish(2)
        world.run()
        assert world.controller.live == 2
    world.clock.advance(0.1)
    world.run()
    assert world.states() == {1: "retired", 2: "retired", 3: "superseded", 4: "superseded", 5: "live"}


def test_a_rollback_waits_for_nothing_and_the_next_swap_for_it(make_world: MakeWorld) -> None:
    world = make_world(min_swap_interval_s=10)
    world.start()
    world.release()
    world.clock.advance(5)
    world.controller.rollback(Version(1), "worse", "operator")
    assert world.controller.live == 1
    world.clock.advance(6)
    world.publish(1)
    world.run()
    assert world.controller.live == 1
    world.clock.advance(4)
    world.run()
    assert world.controller.live == 3


def test_a_version_in_use_goes_with_a_later_swap(world: ReleaseWorld) -> None:
    world.engine.pinned = {Version(1)}
    world.release()
    world.release(2)
    assert set(world.engine.loaded()) == {1, 2, 3}
    world.engine.pinned = set()
    world.release(3)
    assert set(world.engine.loaded()) == {3, 4}


@pytest.mark.parametrize("waiting", [False, True])
def test_a_policy_seen_again_changes_nothing(make_world: MakeWorld, waiting: bool) -> None:
    world = make_world(min_swap_interval_s=10)
    world.start()
    version = world.release()
    if waiting:
        version = world.publish(version)
        world.run()
    before, said = world.states(), world.said()
    with world.store.read() as connection:
        policy = policies.get_policy(connection, version)
    assert policy is not None
    world.log.append_blocking(Topic.POLICIES, [policy, policy])
    world.run()
    assert (world.states(), world.said()) == (before, said)
    assert world.check_one_lives() == 2
    world.clock.advance(10)
    world.run()
    assert world.check_one_lives() == version


# ------------------------------------------------------------------------------------------------ the gate

HIGHEST = 0.8 * math.log(VOCABULARY)


@pytest.mark.parametrize(
    ("figures", "why"),
    [
        ({"finite": 0.0}, "not finite"),
        ({"finite": 0.0, "kl_to_live": math.nan, "entropy": math.nan}, "not finite"),
        ({"kl_to_live": 1.01}, "KL to the live version 1.01 is above 1.0"),
        ({"kl_to_live": math.nan}, "KL to the live version nan"),
        ({"kl_to_live": math.inf}, "KL to the live version inf"),
        ({"entropy": 9e-5}, "entropy 9e-05 is below 0.0001"),
        ({"entropy": 5.1}, "entropy 5.1 is above 4.99"),
        ({"entropy": math.nan}, "entropy nan"),
    ],
)
def test_each_bound_refuses_and_says_its_figure(world: ReleaseWorld, figures: dict[str, float], why: str) -> None:
    refusals = telemetry.REGISTRY.get_sample_value("onward_gate_refusals_total") or 0
    version = Version(2)
    world.engine.figures[version] = {**FINE, **figures}
    world.publish()
    world.run()
    assert world.states() == {1: "live", 2: "rejected"}
    assert why in world.why(2)
    assert [(r.state, r.why) for r in world.said() if r.version == 2] == [("rejected", world.why(2))]
    assert world.engine.switches == [1], "what serves is untouched"
    assert set(world.engine.loaded()) == {1}
    assert world.check_one_lives() == 1
    assert telemetry.REGISTRY.get_sample_value("onward_gate_refusals_total") == refusals + 1
    assert world.release() == 3, "the next one may pass"


@pytest.mark.parametrize("figures", [{"kl_to_live": 1.0}, {"kl_to_live": 0.0}, {"entropy": 1e-4}, {"entropy": HIGHEST}])
def test_what_lies_on_a_bound_passes(world: ReleaseWorld, figures: dict[str, float]) -> None:
    world.engine.figures[Version(2)] = {**FINE, **figures}
    assert world.release() == 2


@pytest.mark.parametrize("damage", ["bit", "missing", "manifest"])
def test_corrupt_weights_are_rejected_by_name(world: ReleaseWorld, damage: str) -> None:
    version = world.publish()
    folder = world.directory / "blobs" / "weights" / "00000002"
    file = folder / ("manifest.json" if damage == "manifest" else "2.safetensors")
    content = file.read_bytes()
    file.unlink()
    if damage != "missing":
        file.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    world.run()
    assert world.states() == {1: "live", version: "rejected"}
    assert f"weights/00000002/{file.name}" in world.why(version)
    assert world.check_one_lives() == 1


def test_what_the_engine_read_otherwise_is_rejected(world: ReleaseWorld) -> None:
    world.engine.misread.add(Version(2))
    world.publish()
    world.run()
    assert world.states() == {1: "live", 2: "rejected"}
    assert "loaded digest other, published" in world.why(2)
    assert set(world.engine.loaded()) == {1}
    assert world.check_one_lives() == 1


# ------------------------------------------------------------------------------------------------ rollbacks


def test_a_rollback_takes_back_all_since(world: ReleaseWorld) -> None:
    for parent in (1, 2, 3):
        world.release(parent)
    world.controller.rollback(Version(3), "worse", "operator")
    assert world.states() == {1: "retired", 2: "retired", 3: "live", 4: "rolled_back"}
    assert world.engine.loads == [2, 3, 4], "it was still in memory"
    world.controller.rollback(Version(1), "worse still", "guard")
    assert world.states() == {1: "live", 2: "rolled_back", 3: "rolled_back", 4: "rolled_back"}
    assert world.engine.loads == [2, 3, 4, 1], "it was not in memory"
    assert set(world.engine.loaded()) == {1, 3}
    assert world.check_one_lives() == 1
    last = {r.version: r for r in world.said()}
    assert {version: r.state for version, r in last.items()} == world.states()
    assert all((r.why, r.by) == ("worse still", "guard") for r in last.values() if r.version != 4 or r.by == "guard")


def test_a_rollback_may_itself_be_taken_back(world: ReleaseWorld) -> None:
    world.release()
    world.controller.rollback(Version(1), "worse", "operator")
    world.controller.rollback(Version(2), "better after all", "operator")
    assert world.states() == {1: "rolled_back", 2: "live"}
    assert world.check_one_lives() == 2
    assert world.release(parent=2) == 3


def test_what_cannot_be_rolled_back_to_is_said(make_world: MakeWorld) -> None:
    world = make_world(min_swap_interval_s=10)
    world.start()
    world.release()
    waiting = world.publish(2)
    world.run()
    for version, error, why in (
        (99, NotFound, "no version 99"),
        (waiting, InvalidRequest, "never served"),
        (2, InvalidRequest, "serves already"),
    ):
        with pytest.raises(error, match=why) as refused:
            world.controller.rollback(Version(version), "x", "operator")
        assert refused.value.param == "version"
    with world.store.begin() as connection:
        allocated = policies.allocate_version(connection, START)
    with pytest.raises(NotFound, match=f"no version {allocated}"):
        world.controller.rollback(allocated, "x", "operator")
    assert world.states() == {1: "retired", 2: "live", 3: "candidate"}
    assert world.check_one_lives() == 2


def test_a_rollback_to_weights_that_are_gone_changes_nothing(world: ReleaseWorld) -> None:
    for parent in (1, 2, 3):
        world.release(parent)
    world.weights.discard(Version(2))
    before = world.states()
    with pytest.raises(WeightsError, match="weights/00000002"):
        world.controller.rollback(Version(2), "x", "operator")
    assert world.states() == before
    assert world.check_one_lives() == 4


def test_descendants_of_what_was_rolled_back_are_refused(make_world: MakeWorld) -> None:
    """Those that wait are rolled back with it; those that come later are rejected."""
    world = make_world(min_swap_interval_s=10)
    world.start()
    world.release()
    waiting = world.publish(2)
    world.run()
    unseen = world.publish(waiting)
    world.controller.rollback(Version(1), "worse", "operator")
    world.clock.advance(10)
    child, grandchild = world.publish(2), world.publish(unseen)
    world.run()
    assert world.states() == {
        1: "live",
        2: "rolled_back",
        waiting: "rolled_back",
        unseen: "rejected",
        child: "rejected",
        grandchild: "rejected",
    }
    assert world.why(child) == "descends from rolled back version 2"
    assert world.engine.loads == [2]
    assert world.check_one_lives() == 1
    assert world.release(parent=1) == grandchild + 1


# ------------------------------------------------------------------------------------------------ restarts


def test_a_restart_serves_what_was_live(world: ReleaseWorld) -> None:
    world.release()
    world.release(2)
    world.start()
    assert world.check_one_lives() == 3
    assert world.engine.loads == [3]
    world.run()
    assert world.states() == {1: "retired", 2: "retired", 3: "live"}
    world.controller.rollback(Version(2), "worse", "operator")
    assert world.check_one_lives() == 2


def test_a_restart_serves_what_was_rolled_back_to(world: ReleaseWorld) -> None:
    world.release()
    world.controller.rollback(Version(1), "worse", "operator")
    world.start()
    world.run()
    assert world.check_one_lives() == 1
    assert world.states() == {1: "live", 2: "rolled_back"}


@pytest.mark.parametrize("seen", [False, True])
def test_a_restart_considers_what_waits(make_world: MakeWorld, seen: bool) -> None:
    """Whether or not the process before had read of it; it counts once."""
    world = make_world(min_swap_interval_s=10)
    world.start()
    world.release()
    world.publish(2, [START])
    world.publish(3, [START, START])
    if seen:
        world.run()
        assert world.controller.live == 2
    world.start()
    world.run()
    assert world.check_one_lives() == 4
    assert steps(world, 3) == ["superseded"]
    assert steps(world, 4) == ["live"]
    before = _timed()
    world.controller.timer.first_token(Version(4), START + timedelta(seconds=1))
    assert _timed() == before + (2 if seen else 3), "of 3 only this process knows"


# A release's calls: the store, the log, the engine and the consumer's commit, each cut off once.


def test_a_release_that_was_cut_off_is_made_good(make_world: MakeWorld) -> None:
    """One version is live, everybody agrees which, and the candidate is released in the end."""
    for at in range(30):
        world = make_world(keep_versions=2)
        world.start()
        for parent in (1, 2, 3):
            world.release(parent)
        world.publish(4)
        crashed = _ends(world, at, world.run)
        world.start()
        assert world.check_one_lives() in (4, 5), at
        world.run()
        assert world.check_one_lives() == 5, at
        assert world.states() == {1: "retired", 2: "retired", 3: "retired", 4: "retired", 5: "live"}, at
        assert steps(world, 5) == ["live"], at
        world.release(5)
        world.close()
        if not crashed:
            break
    assert at >= 7, "load, probe, switch, store, log, discard and commit were cut off"


def test_a_rejection_that_was_cut_off_is_made_good(make_world: MakeWorld) -> None:
    for at in range(30):
        world = make_world()
        world.start()
        world.engine.figures[Version(2)] = {**FINE, "finite": 0.0}
        world.publish()
        crashed = _ends(world, at, world.run)
        world.start()
        world.engine.figures[Version(2)] = {**FINE, "finite": 0.0}
        world.run()
        assert world.check_one_lives() == 1, at
        assert steps(world, 2) == ["rejected"], at
        assert world.release() == 3
        world.close()
        if not crashed:
            break
    assert at >= 5


def test_a_rollback_that_was_cut_off_happened_or_did_not(make_world: MakeWorld) -> None:
    for at in range(30):
        world = make_world()
        world.start()
        world.release()
        world.release(2)
        world.start()
        crashed = _ends(world, at, partial(world.controller.rollback, Version(2), "worse", "operator"))
        world.start()
        world.run()
        live = world.check_one_lives()
        undone = {2: "live", 3: "rolled_back"} if live == 2 else {2: "retired", 3: "live"}
        assert world.states() == {1: "retired", **undone}, at
        if live == 3:
            world.controller.rollback(Version(2), "worse", "operator")
            assert world.check_one_lives() == 2
        assert world.release(2) == 4
        world.close()
        if not crashed:
            break
    assert at == 5, "load, switch, store, log and unload were cut off"


def test_a_start_that_was_cut_off_is_made_good(make_world: MakeWorld) -> None:
    for at in range(30):
        world = make_world()
        world.start()
        world.release()
        world.publish(2)
        world.publish(3)
        crashed = False
        try:
            world.start(Fuse(at))
            world.run()
        except Crash:
            crashed = True
        world.start()
        world.run()
        assert world.check_one_lives() == 4, at
        assert world.states() == {1: "retired", 2: "retired", 3: "superseded", 4: "live"}, at
        world.close()
        if not crashed:
            break
    assert at >= 10


def _ends(world: ReleaseWorld, at: int, act: Callable[[], None]) -> bool:
    """Whether the process ended, before its call number `at` from now on."""
    world.fuse.at = world.fuse.calls + at
    try:
        act()
    except Crash:
        return True
    return False


# ------------------------------------------------------------------------------------------------ old weights


def test_old_weights_are_let_go(make_world: MakeWorld) -> None:
    """Beyond the newest `keep_versions`; never the anchor, what serves and what served before it."""
    world = make_world(keep_versions=3)
    world.start()
    for parent in range(1, 8):
        newest = world.release(parent)
        kept = {1, *range(max(1, newest - 2), newest + 1)}
        assert {version for version in range(1, newest + 1) if world.has_weights(version)} == kept


def test_what_serves_is_never_let_go(make_world: MakeWorld) -> None:
    """However many were refused since."""
    world = make_world(keep_versions=2)
    world.start()
    world.release()
    for version in range(3, 9):
        world.engine.figures[Version(version)] = {**FINE, "finite": 0.0}
        world.publish(2)
        world.run()
    assert world.controller.live == 2
    assert world.release(2) == 9
    assert all(world.has_weights(version) for version in (1, 2, 8, 9))
    world.controller.rollback(Version(2), "worse", "operator")
    assert world.check_one_lives() == 2
    world.start()
    assert world.check_one_lives() == 2


# ------------------------------------------------------------------------------------------------ the loop's time


def _timed() -> float:
    return telemetry.REGISTRY.get_sample_value("onward_feedback_to_served_seconds_count") or 0


def _quantile(quantile: str) -> float | None:
    return telemetry.REGISTRY.get_sample_value("onward_feedback_to_served_quantile_seconds", {"quantile": quantile})


def test_superseded_versions_hand_their_arrivals_on(world: ReleaseWorld) -> None:
    """Whoever serves next has learned from them."""
    world.publish(1, [START])
    world.publish(2, [START + timedelta(seconds=2)])
    world.run()
    before = _timed()
    timer = world.controller.timer
    timer.first_token(Version(2), START + timedelta(seconds=3))
    assert _timed() == before, "it never served"
    timer.first_token(Version(3), START + timedelta(seconds=5))
    timer.first_token(Version(3), START + timedelta(seconds=9))
    assert _timed() == before + 2, "only the first token counts"
    world.controller.step(0)
    assert (_quantile("0.5"), _quantile("0.99")) == (4.0, pytest.approx(4.98))


@given(seconds=st.lists(st.floats(0, 1e6), min_size=1, max_size=50), cuts=st.lists(st.integers(0, 50), max_size=5))
def test_quantiles_are_exact(seconds: list[float], cuts: list[int]) -> None:
    """Over all outcomes since the start, in however many versions they were learned."""
    timer = LoopTimer()
    places = sorted({0, len(seconds), *(cut % len(seconds) for cut in cuts)})
    at = START + timedelta(seconds=2e6)
    taken = [timedelta(seconds=value) for value in seconds]
    for version, (start, end) in enumerate(pairwise(places)):
        timer.learned(at - value for value in taken[start:end])
        timer.goes_live(Version(version))
        timer.first_token(Version(version), at)
    timer.publish_quantiles()
    exact = [value.total_seconds() for value in taken]
    for quantile in ("0.5", "0.99"):
        assert _quantile(quantile) == pytest.approx(float(np.quantile(exact, float(quantile))), abs=1e-9)


def test_a_policy_of_another_process_counts_its_arrivals_once(world: ReleaseWorld) -> None:
    """The same event, read twice while it waits for its turn."""
    world.settings = world.settings.model_copy(update={"min_swap_interval_s": 10.0})
    world.start()
    world.release()
    version = world.publish(2, [START])
    world.run()
    with world.store.read() as connection:
        policy = policies.get_policy(connection, version)
    assert policy is not None
    world.log.append_blocking(Topic.POLICIES, [policy])
    world.run()
    world.clock.advance(10)
    world.run()
    before = _timed()
    world.controller.timer.first_token(version, START)
    assert _timed() == before + 1
