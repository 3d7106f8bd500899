"""The version that serves: candidates pass the gate at minimum intervals, and the fate of the others."""

import math
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Literal

import made_events
import pytest
from memory_engine import FINE
from planted import reward, turn
from release_world import VOCABULARY, ReleaseWorld
from stepping import step

from core import telemetry
from core.events import GateVerdict, Topic
from core.ids import PolicyRef, base_ref
from core.operations.fleet import Experiment
from core.settings import GateSettings
from core.settings.serving import VersionSettings
from core.store.operators.version_files import Kept
from serving.releases.gate import LITTLE, UsualKl
from serving.releases.keeping import certified, thinned
from serving.weights.published import BlobWeights

MakeWorld = Callable[..., ReleaseWorld]


@pytest.fixture
def world(start_world: MakeWorld) -> ReleaseWorld:
    return start_world()


# ------------------------------------------------------------------------------------------------ candidates


def test_a_candidate_that_passes_serves(world: ReleaseWorld) -> None:
    """The previous version stays in memory for a rollback; older ones are unloaded."""
    assert world.release() == 2
    assert world.states() == {1: "retired", 2: "live"}
    assert world.engine.held == {1, 2}
    assert world.release(parent=2) == 3
    assert world.states() == {1: "retired", 2: "retired", 3: "live"}
    assert world.engine.held == {2, 3}
    assert world.engine.switches == [2, 3]
    assert world.engine.loads == [2, 3]
    assert world.check_one_lives() == 3
    said = [(r.version, r.state) for r in world.said() if r.by == "gate"]
    assert said == [(1, "retired"), (2, "live"), (2, "retired"), (3, "live")], "each once"


def test_the_first_version_serves_until_there_is_enough_to_compare_with(start_world: MakeWorld) -> None:
    """It counts turns of that version with a reward, and nothing waits a second time."""
    world = start_world(settings={"release.first_turns": 3})

    def reward_some(count: int, version: int = 1) -> None:
        said = [turn(world, "user", version=version) for _ in range(count)]
        with world.store.work() as work:
            work.turns.put([*said, turn(world, "user", version=version)])
            work.rewards.put([(0, reward(world, each, 1.0)) for each in said])

    reward_some(2)
    reward_some(3, version=2)
    world.publish()
    world.run()
    assert world.states() == {1: "live", 2: "candidate"}
    world.publish()
    reward_some(1)
    world.run()
    assert world.states() == {1: "retired", 2: "superseded", 3: "live"}
    world.carry_out("rollback", 1)
    assert world.release() == 4


@pytest.mark.parametrize(
    ("counts", "is_enough"),
    [
        ([3], False),
        ([4], True),  # of one user there is nobody else
        ([12, 1], False),
        ([2, 2], True),
        ([14, 1], False),
        ([15, 1], True),  # four times as many: who came once holds releases no longer
        ([9, 1, 1], True),
    ],
)
def test_no_user_alone_is_what_later_versions_are_compared_with(
    start_world: MakeWorld, counts: list[int], is_enough: bool
) -> None:
    world = start_world(settings={"release.first_turns": 4})
    said = [turn(world, f"user {user}", version=1) for user, count in enumerate(counts) for _ in range(count)]
    with world.store.work() as work:
        work.turns.put(said)
        work.rewards.put([(0, reward(world, each, 1.0)) for each in said])
    world.publish()
    world.run()
    assert world.live == (2 if is_enough else 1)


def test_an_order_does_not_wait_for_the_first_version(start_world: MakeWorld) -> None:
    world = start_world(settings={"release.first_turns": 3})
    world.publish()
    world.run()
    world.carry_out("promote", 2)
    assert world.states() == {1: "retired", 2: "live"}


def test_nobody_is_said_to_be_live_before_an_engine_serves_it(world: ReleaseWorld) -> None:
    world.publish()
    while world.live == 1:
        step(world.hosts["local"], 0.01)
        serving = world.engine.serves
        step(world.controller, 0)
        assert world.live == 1 or serving == 2
    assert world.check_one_lives() == 2


def test_the_newest_of_several_that_wait_goes(world: ReleaseWorld) -> None:
    for parent in (1, 2, 3):
        world.publish(parent)
    world.run()
    assert world.states() == {1: "retired", 2: "superseded", 3: "superseded", 4: "live"}
    assert world.engine.loads == [4], "nobody loads what will not serve"
    assert "version 4" in world.why(3)


def test_one_that_is_under_way_is_not_passed_by_a_newer_one(world: ReleaseWorld) -> None:
    world.publish(1)
    world.run(until=lambda: 2 in world.targets()["local"].hold)
    world.publish(2)
    world.run()
    assert world.states() == {1: "retired", 2: "retired", 3: "live"}


def test_swaps_keep_their_distance(start_world: MakeWorld) -> None:
    """The first may swap at once; early ones wait, and the newest of them is next."""
    world = start_world(settings={"serving.versions.min_swap_interval_s": 10})
    world.release()
    for seconds in (0.0, 5.0, 4.4):
        world.clock.advance(seconds)
        world.publish(2)
        world.run()
        assert world.check_one_lives() == 2
    assert world.engine.loads == [2], "it is not known yet which of them will serve"
    assert world.controller.tick() == pytest.approx(0.1), "when the newest may be verified"
    world.clock.advance(0.2)
    world.run()
    assert world.engine.loads == [2, 5], "verified ahead, since only the swap is spaced"
    assert world.check_one_lives() == 2
    world.clock.advance(0.3)
    assert world.controller.tick() == pytest.approx(0.1), "when it may serve"
    world.clock.advance(0.1)
    world.run()
    assert world.states() == {1: "retired", 2: "retired", 3: "superseded", 4: "superseded", 5: "live"}


def test_a_rollback_waits_for_nothing_and_the_next_swap_for_it(start_world: MakeWorld) -> None:
    world = start_world(settings={"serving.versions.min_swap_interval_s": 10})
    world.release()
    world.clock.advance(5)
    world.carry_out("rollback", 1)
    assert world.check_one_lives() == 1
    world.clock.advance(6)
    world.publish(1)
    world.run()
    assert world.check_one_lives() == 1
    world.clock.advance(4)
    world.run()
    assert world.check_one_lives() == 3


def test_a_version_in_use_goes_when_it_is_free(world: ReleaseWorld) -> None:
    world.engine.pinned = {1}
    world.release()
    world.release(2)
    assert world.engine.held == {1, 2, 3}
    world.engine.pinned = set()
    world.run()
    assert world.engine.held == {2, 3}


@pytest.mark.parametrize("waiting", [False, True])
def test_a_policy_seen_again_changes_nothing(start_world: MakeWorld, waiting: bool) -> None:
    world = start_world(settings={"serving.versions.min_swap_interval_s": 10})
    version = world.release()
    if waiting:
        version = world.publish(version)
        world.run()
    before, said = world.states(), world.said()
    with world.store.look() as view:
        policy = view.policies.get(base_ref(version))
    assert policy is not None
    with world.store.work() as work:
        work.policies.put(policy)
    world.log.append_blocking(Topic.POLICIES, [policy, policy])
    world.run()
    assert (world.states(), world.said()) == (before, said)
    assert world.check_one_lives() == 2
    world.clock.advance(10)
    world.run()
    assert world.check_one_lives() == version


def test_descendants_of_what_was_taken_back_or_refused_are_rejected(start_world: MakeWorld) -> None:
    """Waiting and later ones alike, whatever versions are between them."""
    world = start_world(settings={"serving.versions.min_swap_interval_s": 10})
    world.release()
    waiting = world.publish(2)
    world.run()
    unseen = world.publish(waiting)
    world.carry_out("rollback", 1)
    world.clock.advance(10)
    child, grandchild = world.publish(2), world.publish(unseen)
    world.run()
    rejected = dict.fromkeys((waiting, unseen, child, grandchild), "rejected")
    assert world.states() == {1: "live", 2: "rolled_back", **rejected}
    assert world.why(child) == "descends from version 2, which was rolled back"
    assert world.why(grandchild) == f"descends from version {unseen}, which was rejected"
    assert world.engine.loads == [2]
    assert world.release(parent=1) == grandchild + 1
    assert world.check_one_lives() == grandchild + 1


def test_a_restart_serves_what_was_live(world: ReleaseWorld) -> None:
    world.release()
    world.release(2)
    world.start()
    assert world.check_one_lives() == 3
    assert world.engine.loads == [3, 2], "what serves comes first, then what a rollback needs"
    assert world.states() == {1: "retired", 2: "retired", 3: "live"}
    world.carry_out("rollback", 2)
    world.start()
    assert world.check_one_lives() == 2
    assert world.states() == {1: "retired", 2: "live", 3: "rolled_back"}


def test_a_restart_considers_what_waits(start_world: MakeWorld) -> None:
    world = start_world(settings={"serving.versions.min_swap_interval_s": 10})
    world.release()
    world.publish(2)
    world.publish(3)
    world.run()
    assert world.check_one_lives() == 2
    world.start()
    assert world.check_one_lives() == 4
    assert (world.steps(3), world.steps(4)) == (["superseded"], ["live"])


# ------------------------------------------------------------------------------------------------ the gate

HIGHEST = 0.8 * math.log(VOCABULARY)


def test_each_bound_refuses_and_says_its_figure(world: ReleaseWorld) -> None:
    cases: list[tuple[dict[str, float], str]] = [
        ({"finite": 0.0}, "not finite"),
        ({"finite": 0.0, "kl_to_live": math.nan, "entropy": math.nan}, "not finite"),
        ({"kl_to_live": 1.01}, "KL to the live version 1.01 is above 1.0"),
        ({"kl_to_live": math.nan}, "KL to the live version nan"),
        ({"kl_to_live": math.inf}, "KL to the live version inf"),
        ({"entropy": 9e-5}, "entropy 9e-05 is below 0.0001"),
        ({"entropy": 5.1}, "entropy 5.1 is above 4.99"),
        ({"entropy": math.nan}, "entropy nan"),
    ]
    for version, (figures, why) in enumerate(cases, 2):
        refusals = telemetry.REGISTRY.get_sample_value("onward_gate_refusals_total") or 0
        world.engine.figures[version] = {**FINE, **figures}
        world.publish()
        world.run()
        assert world.states()[version] == "rejected"
        assert why in world.why(version)
        assert [(r.state, r.why) for r in world.said() if r.version == version] == [("rejected", world.why(version))]
        assert world.engine.switches == [], "what serves is untouched"
        assert world.engine.held == {1}
        assert world.check_one_lives() == 1
        assert telemetry.REGISTRY.get_sample_value("onward_gate_refusals_total") == refusals + 1
    assert world.release() == len(cases) + 2, "the next one may pass"


def test_what_lies_on_a_bound_passes(world: ReleaseWorld) -> None:
    bounds = [{"kl_to_live": 1.0}, {"kl_to_live": 0.0}, {"entropy": 1e-4}, {"entropy": HIGHEST}]
    for version, figures in enumerate(bounds, 2):
        world.engine.figures[version] = {**FINE, **figures}
        assert world.release(version - 1) == version


def test_a_version_that_jumps_is_refused_by_what_is_usual(world: ReleaseWorld) -> None:
    for live in range(1, 9):
        world.release(live)
    jumped = world.publish(9)
    world.engine.figures[jumped] = {**FINE, "kl_to_live": 0.11}
    world.run()
    assert world.states()[jumped] == "rejected"
    assert "KL to the live version 0.11 is above 0.1, as far as updates usually go" in world.why(jumped)
    world.publish(9)
    world.engine.figures[12] = {**FINE, "kl_to_live": 0.3}
    assert world.release(11) == 12, "two updates in one direction go four times as far"
    world.engine.figures[13] = {**FINE, "kl_to_live": 0.9}
    world.publish(12, verdict=GateVerdict(action="pass", why="ten cases"))
    world.run()
    assert world.check_one_lives() == 13, "what was made offline is no update"


def test_steps_that_are_larger_for_good_become_usual() -> None:
    usual, settings = UsualKl(), GateSettings()
    assert [usual.most(base_ref(number), 1e-4, 1, settings) for number in range(20)][-1] == LITTLE
    bounds = [usual.most(base_ref(number), 0.3, 1, settings) for number in range(20, 30)]
    assert bounds == [LITTLE] * 8 + [1.0] * 2, "and never beyond the settings"
    assert usual.most(base_ref(29), math.nan, 1, settings) == 1.0, "asked again, it is no evidence"


def test_corrupt_weights_are_rejected_by_name(world: ReleaseWorld) -> None:
    for damage in ("bit", "missing", "manifest"):
        version = world.publish()
        folder = world.directory / "blobs" / "weights" / f"{version:08d}"
        file = folder / ("manifest.json" if damage == "manifest" else f"{version}.safetensors")
        content = file.read_bytes()
        file.unlink()
        if damage != "missing":
            file.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
        world.run()
        assert world.states()[version] == "rejected"
        assert f"weights/{version:08d}/{file.name}" in world.why(version)
        assert world.check_one_lives() == 1


def test_what_the_engine_read_otherwise_is_rejected(world: ReleaseWorld) -> None:
    world.engine.misread.add(2)
    world.publish()
    world.run()
    assert world.states() == {1: "live", 2: "rejected"}
    assert "loaded digest other, published" in world.why(2)
    assert world.engine.held == {1}
    assert world.check_one_lives() == 1


def test_a_record_of_other_weights_is_rejected(world: ReleaseWorld) -> None:
    """The publisher's record may name other weights than the blobs hold."""
    with world.store.work() as work:
        version = work.policies.allocate(world.clock.now())
    ref = world.weights.publish(version, world.shards_at(world.directory / "2.safetensors", 2), base_ref(1))
    record = made_events.policy(version, digest="0" * 64, parent=base_ref(1), weights=ref.path)
    with world.store.work() as work:
        work.policies.put(record)
    world.run()
    assert world.states() == {1: "live", 2: "rejected"}
    assert world.engine.switches == []


# ------------------------------------------------------------------------------------------------ old weights


def test_old_weights_are_let_go(start_world: MakeWorld) -> None:
    """The newest `keep` versions stay, with the anchor, the live version and the one before it.

    The store knows which, and does so again where somebody else deleted or brought some."""
    world = start_world(settings={"serving.versions.keep": 3, "serving.versions.all_s": 0})
    for parent in range(1, 8):
        newest = world.release(parent)
        kept = {1, *range(max(1, newest - 2), newest + 1)}
        assert {version for version in range(1, newest + 1) if world.has_weights(version)} == kept
        assert soon(world, "now") == kept
    world.weights.discard(base_ref(6))
    world.weights.publish(base_ref(3), world.shards_at(world.directory / "3.safetensors", 3), None)
    world.replace_controller()
    world.run()
    assert soon(world, "now") == {1, 3, 7, 8}


def test_what_canaries_certified_is_kept(start_world: MakeWorld) -> None:
    world = start_world(settings={"serving.versions.keep": 2, "serving.versions.all_s": 0})
    with world.store.work() as work:
        for version, verdict in ((3, "promote"), (4, "rollback"), (5, "promote")):
            work.experiments.put(ended(version, verdict))
    for parent in range(1, 9):
        world.release(parent)
    assert soon(world, "now") == {1, 3, 5, 7, 8, 9}


def test_of_what_was_certified_the_newest_hundred_are_kept_where_there_is_room() -> None:
    kept = [Kept(base_ref(number), made_events.NOW, 10**7, is_rejected=number == 150) for number in range(1, 151)]
    experiments = [ended(number, "promote") for number in (200, *range(150, 0, -1), 7)]
    all_of_it = VersionSettings(most_gb=None)
    assert certified(kept, (), all_of_it, experiments) == {base_ref(number) for number in range(50, 150)}
    little, fixed = VersionSettings(most_gb=0.05), {base_ref(149), base_ref(1)}
    assert certified(kept, fixed, little, experiments) == {base_ref(number) for number in range(146, 150)}
    on_two = {base_ref(number): base_ref(number - 1) for number in range(2, 151) if number % 3 != 1}
    less, whole = VersionSettings(most_gb=0.04), {base_ref(148), base_ref(149)}
    assert certified(kept, (), less, experiments, on_two) == whole, "147 needs two others"
    assert thinned(kept, (), less, made_events.NOW, on_two) == whole


def ended(version: int, verdict: Literal["promote", "rollback"]) -> Experiment:
    return Experiment(
        experiment_id=f"e{version}",
        cluster="local",
        canary=base_ref(version),
        control=base_ref(1),
        share=0.2,
        salt="s",
        started_at=made_events.NOW + timedelta(seconds=version),
        ended_at=made_events.NOW + timedelta(seconds=version),
        verdict=verdict,
    )


def test_what_a_kept_delta_is_made_upon_is_kept_and_serves(
    start_world: MakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world, bases = start_world(settings={"serving.versions.keep": 2, "serving.versions.all_s": 0}), BlobWeights.bases

    def upon_three(weights: BlobWeights) -> dict[PolicyRef, PolicyRef | None]:
        return {version: base_ref(3) if version > base_ref(3) else None for version in bases(weights)}

    monkeypatch.setattr(BlobWeights, "bases", upon_three)
    for parent in range(1, 8):
        world.release(parent)
    assert soon(world, "now") == {1, 3, 6, 7, 8}
    world.carry_out("rollback", 3)


def soon(world: ReleaseWorld, how: str) -> set[int]:
    with world.store.look() as view:
        found = view.files.servable([base_ref(version) for version in world.states()])
    return {version.version for version, servable in found.items() if servable.servable == how}


def test_of_what_is_older_fewer_and_fewer_are_kept() -> None:
    """All at first, then one a minute, an hour, a day: the same ones as before, as long as there is room for them."""
    settings = VersionSettings(keep=2, all_s=60, by_minute_s=3600, by_hour_s=6 * 3600, by_day_s=2 * 86400, most_gb=None)
    start, kept = datetime(2026, 1, 1, tzinfo=UTC), list[Kept]()
    for number in range(27 * 120):  # every 30 s
        now = start + timedelta(seconds=30 * number)
        kept.append(Kept(base_ref(number + 1), now, 10**7, is_rejected=number % 120 == 0 and number > 0))
        left = thinned(kept, (), settings, now)
        kept = [each for each in kept if each.version in left]
    ages_s = [(now - each.made_at).total_seconds() for each in kept]
    counts = [sum(least <= age_s < most for age_s in ages_s) for least, most in pairwise((0, 60, 3600, 21600, 172800))]
    assert counts == [2, 59, 5, 1]
    assert not any(each.is_rejected for each in kept)
    assert {each.made_at.minute for each in kept[:6]} == {0}, "the first of each hour"
    little = settings.model_copy(update={"most_gb": 0.5})
    fixed = {kept[0].version, kept[-1].version}
    assert thinned(kept, fixed, little, now) | fixed == {each.version for each in (kept[0], *kept[-49:])}


def test_what_serves_is_never_let_go(start_world: MakeWorld) -> None:
    """The number of versions refused since does not matter."""
    world = start_world(settings={"serving.versions.keep": 2})
    world.release()
    for version in range(3, 9):
        world.engine.figures[version] = {**FINE, "finite": 0.0}
        world.publish(2)
        world.run()
    assert world.check_one_lives() == 2
    assert world.release(2) == 9
    assert all(world.has_weights(version) for version in (1, 2, 8, 9))
    assert not world.has_weights(3)
    world.carry_out("rollback", 2)
    world.start()
    assert world.check_one_lives() == 2


def test_what_an_operator_holds_is_not_let_go(start_world: MakeWorld) -> None:
    world = start_world(settings={"serving.versions.keep": 2, "serving.versions.min_swap_interval_s": 1})
    world.release()
    held = world.publish(2)
    world.carry_out("hold", held)
    for _ in range(4):
        world.clock.advance(1)
        world.release(2)
    assert world.has_weights(held)
    world.carry_out("promote", held)
    assert world.check_one_lives() == held


def test_what_waits_for_a_person_keeps_its_weights(start_world: MakeWorld) -> None:
    """So does what has a number and is being published; after a day without an offer it counts as given up."""
    world = start_world(settings={"serving.versions.keep": 2})
    version = world.publish(verdict=GateVerdict(action="hold", why="ask somebody", proposed=True))
    with world.store.work() as work:
        begun = work.policies.allocate(world.clock.now())
    world.weights.publish(begun, world.shards_at(world.directory / "begun.safetensors", 3), base_ref(1))
    for parent in (1, 4, 5, 6):
        world.release(parent)
    assert world.has_weights(version)
    assert world.has_weights(begun.version)
    world.clock.advance(24 * 3600 + 1)
    world.release(7)
    assert not world.has_weights(begun.version)
    world.carry_out("promote", version)
    assert world.check_one_lives() == version
