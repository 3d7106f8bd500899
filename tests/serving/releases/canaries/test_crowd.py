"""Canaries in small crowds: users change arms, and are held against themselves."""

import random
from collections.abc import Callable

import pytest
from planted import plant
from release_world import ReleaseWorld

from bench.releases.crowd_trials import WORSE, Case, is_taken_back
from core.ids import UserHash
from core.settings import CanarySettings
from core.statistics.clustered import contrast, sums
from serving.releases.canaries.crowd import CanaryCrowd, crowd_of
from serving.releases.canaries.evidence import ArmStatistics
from serving.releases.canaries.traffic import StoreTraffic
from serving.releases.canaries.verdict import judge_few

SETTINGS = CanarySettings()


def test_who_is_held_against_themselves_need_not_be_alike() -> None:
    """The users' levels differ by far more than the versions, and each has one side more often than the other."""
    users = range(-10, 10)
    mine = sums([(f"{user}", user + 0.3 + noise) for user in users for noise in (-0.1, 0.1) * (user % 3 + 2)])
    theirs = sums([(f"{user}", user + noise) for user in users for noise in (-0.1, 0.1) * (user % 2 + 2)])
    found = contrast(mine, theirs)
    assert found.difference == pytest.approx(0.3, abs=0.15)
    assert contrast(mine, {}).units == 0, "one side alone says nothing"
    alone = contrast(sums([("a", 1.0), ("b", 0.0)]), sums([("c", 0.0), ("d", 1.0)]))
    assert alone.difference == pytest.approx(0.0)
    assert alone.squared_error > 0.1


def test_in_a_small_crowd_a_worse_version_is_taken_back_within_a_day() -> None:
    assert sum(is_taken_back(Case(50, quality=WORSE), trial) for trial in range(8)) >= 7
    assert sum(is_taken_back(Case(50), trial) for trial in range(20)) <= 3
    assert not any(is_taken_back(Case(20, quality=WORSE, switches=False), trial) for trial in range(4)), "as it was"


def test_one_user_of_many_turns_takes_nothing_back() -> None:
    rng = random.Random(1)
    canary, live = ArmStatistics(), ArmStatistics()
    for user in range(20):
        for _ in range(10):
            canary.add(f"{user}", rng.choice((1.0, -0.5)))
            live.add(f"{user}", rng.choice((1.0, -0.5)))
    for _ in range(400):
        canary.add("loud", -0.5)
        live.add("loud", 1.0)
    assert judge_few(canary, live, 0.0, SETTINGS).action == "wait"
    assert judge_few(canary, live, SETTINGS.horizon_s, SETTINGS).action == "promote"


@pytest.mark.parametrize(
    ("users", "turns", "crowd"),
    [
        (0, 0, CanaryCrowd(0.2, 3600.0)),
        (20, 90, CanaryCrowd(0.2, 3600.0)),
        (20, 100, CanaryCrowd(0.5, 3600.0)),
        (50, 4000, CanaryCrowd(0.4, 3600.0)),
        (200, 4000, CanaryCrowd(0.2, 3600.0)),
        (300, 4000, CanaryCrowd(0.2, None)),
    ],
)
def test_the_fewer_they_are_the_more_of_them_try(users: int, turns: int, crowd: CanaryCrowd) -> None:
    assert crowd_of(users, turns, SETTINGS) == crowd
    assert crowd_of(users, turns, CanarySettings(switch_s=0)) == CanaryCrowd(0.2, None)


def test_twelve_users_who_were_served_by_both_take_a_worse_version_back(
    start_world: Callable[..., ReleaseWorld],
) -> None:
    world = start_world(settings={"release.canary.enabled": "on", "release.canary.maturity_s": 10.0})
    world.publish()
    world.run()
    (running,) = world.experiments()
    for name, version, mean in (("canary", running.canary, 0.2), ("live", running.control, 0.7)):
        fields = {"arm": name, "version": version, "experiment_id": running.experiment_id}
        for user in range(12):
            plant(world, 3, mean, first=3 * user, user_id=UserHash(f"user-{user}"), **fields)
    world.pass_time(11)
    (ended,) = world.experiments()
    assert (ended.verdict, world.states()[2]) == ("rollback", "rolled_back")
    assert (ended.figures["users"], ended.figures["control_users"]) == (12, 12)
    assert -0.6 < ended.figures["difference"] < -0.4


def test_users_of_a_small_crowd_change_arms_from_hour_to_hour(start_world: Callable[..., ReleaseWorld]) -> None:
    world = start_world(settings={"release.canary.enabled": "on"})
    world.publish()
    world.run()
    assert world.experiments()[0].switch_s == SETTINGS.switch_s
    traffic = StoreTraffic(world.store, "local", world.release_settings, world.clock)
    users = [f"user-{number}" for number in range(100)]

    def arms() -> list[str]:
        return [traffic.assign(user).arm for user in users]

    first = arms()
    world.clock.advance(1800.0)
    assert arms() == first, "within the hour they stay"
    world.clock.advance(1800.0)
    changed = [before != now for before, now in zip(first, arms(), strict=True)]
    assert 10 < sum(changed) < 60, "about a third, of shares of a fifth"
