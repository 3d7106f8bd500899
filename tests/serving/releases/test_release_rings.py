"""Rings: a version goes from some users to more, each time once the test of those who have it is passed."""

from collections.abc import Callable
from typing import Any

import pytest
from planted import alarm, plant
from release_world import ReleaseWorld

from core import telemetry
from core.events import Topic
from core.ids import BASE, Namespace, UserHash, user_hash
from core.operations.fleet import Experiment
from core.settings.policies import rings_of
from serving.releases import StoreTraffic
from serving.releases.canaries.rings import Members

MakeWorld = Callable[..., ReleaseWorld]
DEFAULT = Namespace("default")
SHARE = 0.3
STAFF = {"name": "staff", "users": {"default": ["ada", "grace"]}, "min_sessions": 3, "min_duration_s": 5.0}
EARLY = {"name": "early", "share": SHARE, "min_sessions": 8, "min_duration_s": 12.0}
SETTINGS = {
    "release.rings": [STAFF, EARLY],
    "release.canary.enabled": "auto",
    "release.canary.maturity_s": 1.0,
    "release.canary.min_users": 5,
    "release.canary.horizon_s": 1000.0,
}
CROWD = [UserHash(f"user-{number}") for number in range(300)]


def hash_of(namespace: Namespace, user: str) -> UserHash:
    return user_hash("a key", namespace, user)


ADA = hash_of(DEFAULT, "ada")


@pytest.fixture
def world(start_world: MakeWorld) -> ReleaseWorld:
    """Return a world where 1 is live, and 2 is tried by the staff."""
    return begin(start_world(settings=SETTINGS))


def begin(world: ReleaseWorld) -> ReleaseWorld:
    world.publish()
    world.run()
    assert world.states() == {1: "live", 2: "canary"}
    return world


def running(world: ReleaseWorld) -> Experiment:
    return world.experiments()[0]


def traffic(world: ReleaseWorld) -> StoreTraffic:
    """Return what one API process knows, as it starts now."""
    rings = rings_of(world.policies, world.release_settings.rings, BASE)
    return StoreTraffic(world.store, "local", world.release_settings, (BASE,), {BASE: Members(rings, hash_of)})


def tried_by(world: ReleaseWorld) -> frozenset[UserHash]:
    """Return who of the crowd and of the staff is served by version 2."""
    known = traffic(world)
    asked = {user: known.assign(user, BASE, DEFAULT) for user in (*CROWD, ADA)}
    return frozenset(user for user, given in asked.items() if given.version is not None and given.version.version == 2)


def speak(world: ReleaseWorld, users: int, mean: float, *, drawn: bool = False, **fields: Any) -> None:
    """Plant turns of a ring: of whom it names or, with `drawn`, of whom the hash drew; users of the others, too."""
    of = running(world)
    who = {"arm": "canary", "version": of.canary, "propensity": SHARE if drawn else 1.0}
    plant(world, users, mean, experiment_id=of.experiment_id, **(who | fields))


def others_speak(world: ReleaseWorld, users: int, mean: float, **fields: Any) -> None:
    of = running(world)
    plant(world, users, mean, experiment_id=of.experiment_id, version=of.control, propensity=1 - of.share, **fields)


def pass_staff(world: ReleaseWorld) -> None:
    speak(world, 3, 0.5)
    world.pass_time(6)
    assert running(world).rings == ("staff", "early"), world.why(2)


# ------------------------------------------------------------------------------------------------ ring after ring


def test_the_staff_then_some_then_all(world: ReleaseWorld) -> None:
    first = running(world)
    assert (first.rings, first.share, first.control) == (("staff",), 0.0, 1)
    assert tried_by(world) == {ADA}
    pass_staff(world)
    second = running(world)
    assert (second.salt, second.share, second.canary) == (first.salt, SHARE, 2)
    some = tried_by(world)
    assert ADA in some
    assert 42 < len(some) < 140, "six deviations from 90: the salt is drawn anew at each run"
    speak(world, 10, 0.8, drawn=True)
    others_speak(world, 10, 0.4)
    world.pass_time(9)
    assert running(world).ended_at is None, "12 s must pass"
    world.pass_time(4)
    assert world.check_one_lives() == 2
    assert world.steps(2) == ["canary", "canary", "live"]
    words = [release.why for release in world.history() if release.version == 2]
    assert words[0] == "passed the sanity gate; on to ring staff"
    assert words[1] == "ring staff: no guard tripped, and 3 sessions were decided; on to ring early"
    assert words[2] == "passed rings staff, early"
    last, before = world.experiments()
    assert (before.verdict, last.verdict) == ("passed", "promote")
    assert last.why.startswith("ring early: no worse by 0.02: reward +0.4")
    assert last.figures["sessions"] == 10


def test_the_second_ring_refuses(world: ReleaseWorld) -> None:
    pass_staff(world)
    speak(world, 3, 1.0, first=50)  # the staff likes it still
    speak(world, 10, 0.2, drawn=True)
    others_speak(world, 10, 0.7)
    world.pass_time(3)
    assert world.steps(2) == ["canary", "canary", "rolled_back"]
    assert world.why(2).startswith("ring early: worse: reward -0.5")
    assert (running(world).verdict, running(world).why) == ("rollback", world.why(2))
    assert world.check_one_lives() == 1
    assert tried_by(world) == frozenset()


def test_a_guard_refuses_in_the_first_ring(world: ReleaseWorld) -> None:
    others_speak(world, 60, 0.5)
    speak(world, 60, 0.5, finish_reason="error")
    world.pass_time(1)
    assert world.states() == {1: "live", 2: "rolled_back"}
    assert world.why(2).startswith("ring staff: error_rate in write: ")


def test_an_alarm_takes_it_back_and_the_ring_is_named(world: ReleaseWorld) -> None:
    world.log.append_blocking(Topic.ALARMS, [alarm(world)])
    world.pass_time(1)
    assert world.why(2) == "ring staff: alarm of broken tool calls: share 0.4"


# ------------------------------------------------------------------------------------------------ whose word counts


@pytest.mark.parametrize("reward", [-1.0, 2.0])
def test_rewards_of_whom_a_ring_names_are_compared_with_nobodys(world: ReleaseWorld, reward: float) -> None:
    """The staff may be harder or easier to please, whatever version it has: by that no version is judged."""
    others_speak(world, 30, 0.5)
    speak(world, 30, reward)
    world.pass_time(6)
    assert running(world).rings == ("staff", "early")
    others_speak(world, 30, 0.5)
    speak(world, 30, reward)
    world.pass_time(15)
    assert running(world).ended_at is None, "nobody who was drawn has spoken"
    assert running(world).rings == ("staff", "early")


def test_a_ring_waits_for_its_sessions_however_long(world: ReleaseWorld) -> None:
    speak(world, 2, 1.0)
    unrewarded = running(world).experiment_id
    plant(world, 9, arm="canary", version=2, experiment_id=unrewarded, first=20)
    world.pass_time(1100, step_s=100)
    assert running(world).rings == ("staff",)
    assert running(world).ended_at is None
    speak(world, 1, 1.0, first=10)
    world.pass_time(2)
    assert running(world).rings == ("staff", "early")


def test_the_holdback_is_not_compared_with_whom_a_ring_names(start_world: MakeWorld) -> None:
    world = start_world(settings=SETTINGS | {"release.holdback.share": 0.1})
    world.publish()
    world.run()
    world.carry_out("promote", 2)
    plant(world, 30, 0.9, arm="holdback", version=1, propensity=0.1)
    plant(world, 30, -1.0, version=2, propensity=1.0, first=100)  # the staff, between two versions
    world.pass_time(3)
    assert world.live == 2
    plant(world, 30, -1.0, version=2, propensity=0.9, first=200)
    world.pass_time(3)
    assert world.live == 1, "whom the hash drew is compared"


# ------------------------------------------------------------------------------------------------ orders


def test_an_operator_may_promote_it_past_its_rings(world: ReleaseWorld) -> None:
    world.carry_out("promote", 2)
    assert world.check_one_lives() == 2
    assert (running(world).verdict, running(world).rings) == ("promote", ("staff",))


def test_a_held_version_stays_in_its_ring(world: ReleaseWorld) -> None:
    world.carry_out("hold", 2)
    speak(world, 9, 0.5)
    world.pass_time(10)
    assert running(world).rings == ("staff",)
    world.carry_out("unhold", 2)
    world.pass_time(1)
    assert running(world).rings == ("staff", "early")


def test_a_rollback_ends_its_ring(world: ReleaseWorld) -> None:
    pass_staff(world)
    world.carry_out("rollback", 1)
    assert world.states() == {1: "live", 2: "rolled_back"}
    assert running(world).verdict == "stopped"
    assert tried_by(world) == frozenset()


# ------------------------------------------------------------------------------------------------ engines


def test_who_has_it_keeps_it_while_it_goes_on_to_all(start_world: MakeWorld) -> None:
    """Three engines turn one by one; whoever was in a ring is not handed back meanwhile."""
    world = begin(start_world("a", "b", "c", settings=SETTINGS))
    pass_staff(world)
    before = tried_by(world)
    speak(world, 10, 0.8, drawn=True)
    others_speak(world, 10, 0.4)
    world.clock.advance(13)
    rounds = 0
    while world.live == 1:
        assert tried_by(world) == before
        world.run(until=lambda: True)
        rounds += running(world).ended_at is not None
    assert rounds > 3
    assert tried_by(world) == frozenset(), "it is what is live"


def test_where_no_engine_can_be_spared_it_waits(start_world: MakeWorld) -> None:
    """Without rings it would be released directly."""
    world = start_world("a", settings=SETTINGS)
    world.publish()
    world.pass_time(3)
    assert world.states() == {1: "live", 2: "candidate"}
    world.names = ("a", "b")
    world.start_engine("b")
    world.start_host("b")
    world.run()
    assert world.states() == {1: "live", 2: "canary"}
    assert sorted(target.lane for target in world.targets().values()) == ["canary", "live"]


# ------------------------------------------------------------------------------------------------ ends in between


def test_the_next_controller_goes_on_in_the_same_ring(world: ReleaseWorld) -> None:
    pass_staff(world)
    before = tried_by(world)
    speak(world, 10, 0.8, drawn=True)
    others_speak(world, 10, 0.4)
    world.pass_time(2)
    world.replace_controller()
    world.run()
    assert (running(world).rings, tried_by(world)) == (("staff", "early"), before)
    world.pass_time(13)
    assert running(world).figures["turns"] == 10, "what the first one heard is heard again"
    assert world.check_one_lives() == 2


def test_a_ring_that_left_the_settings_passes_nobody(world: ReleaseWorld) -> None:
    world.release_settings = world.release_settings.model_copy(update={"rings": world.release_settings.rings[1:]})
    world.replace_controller()
    world.pass_time(2)
    assert world.states() == {1: "live", 2: "rolled_back"}
    assert world.why(2) == "ring staff: the settings no longer have this ring"


def test_a_canary_of_before_there_were_rings_ends_as_one(start_world: MakeWorld) -> None:
    world = start_world(settings={**SETTINGS, "release.rings": [], "release.canary.enabled": "on"})
    begin(world)
    assert running(world).rings == ()
    more = start_world(settings=SETTINGS)
    world.release_settings = more.release_settings
    world.replace_controller()
    world.run()
    of = running(world)
    plant(world, 10, 0.8, arm="canary", version=2, experiment_id=of.experiment_id, propensity=0.2)
    plant(world, 10, 0.4, version=1, experiment_id=of.experiment_id, propensity=0.8)
    world.pass_time(3)
    assert world.steps(2) == ["canary", "live"]


def test_the_metric_says_which_ring_tries_a_version(world: ReleaseWorld) -> None:
    def place() -> float | None:
        return telemetry.REGISTRY.get_sample_value("onward_release_ring", {"policy": "base"})

    world.pass_time(1)
    assert place() == 1
    pass_staff(world)
    world.pass_time(1)
    assert place() == 2
    world.carry_out("promote", 2)
    world.pass_time(1)
    assert place() == 0
