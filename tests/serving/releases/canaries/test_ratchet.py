"""The ratchet: steps that are each too small to be seen, and add up."""

import math
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from planted import plant_arms
from release_world import ReleaseWorld

from bench.releases.ratchet_trials import draw, draw_habits, looks
from core.ids import base_ref
from core.operations.fleet import Experiment
from core.settings import CanarySettings
from serving.releases.canaries.evidence import ArmStatistics
from serving.releases.canaries.ratchet import LIKELY_STEP, MOST_STEPS, PromotionStep, behind, steps_to
from serving.releases.canaries.verdict import judge

MakeWorld = Callable[..., ReleaseWorld]
SETTINGS = {
    "release.canary.enabled": "on",
    "release.canary.maturity_s": 10.0,
    "release.canary.min_users": 5,
    "release.canary.horizon_turns": 20,
    "release.canary.horizon_s": 1000.0,
    "release.canary.switch_s": 0.0,
}
NOW = datetime(2026, 3, 1, tzinfo=UTC)


def promoted(canary: int, control: int, difference: float = -0.1, **fields: Any) -> Experiment:
    usual: dict[str, Any] = {
        "experiment_id": f"e{canary}-{control}",
        "cluster": "local",
        "canary": base_ref(canary),
        "control": base_ref(control),
        "share": 0.2,
        "salt": "s",
        "started_at": NOW,
        "ended_at": NOW,
        "verdict": "promote",
        "figures": {"difference": difference, "error": 0.1},
    }
    return Experiment(**(usual | fields))


def step(before: int, difference: float, error: float) -> PromotionStep:
    return PromotionStep(base_ref(before), difference, error**2)


def test_steps_lead_back_to_what_nobody_measured() -> None:
    ended = [promoted(7, 5, -0.2), promoted(6, 5, verdict="rollback"), promoted(5, 3), promoted(2, 1)]
    assert [found.before.version for found in steps_to(base_ref(7), ended)] == [5, 3]
    assert steps_to(base_ref(7), ended)[0] == PromotionStep.measured(base_ref(5), -0.2, 0.1)
    assert steps_to(base_ref(6), ended) == (), "it was taken back"
    assert steps_to(base_ref(7), [promoted(7, 5, figures={}), promoted(5, 3)]) == (), "an operator promoted it"
    assert steps_to(base_ref(1), ended) == ()
    lane = promoted(9, 3, lane=(base_ref(7), base_ref(8)), certified=base_ref(8))
    assert [len(steps_to(base_ref(version), [lane, *ended])) for version in (7, 8, 9)] == [2, 1, 0]
    long = [promoted(number + 1, number) for number in range(40, 0, -1)]
    assert len(steps_to(base_ref(41), long)) == MOST_STEPS
    assert len(steps_to(base_ref(2), [promoted(2, 1), promoted(1, 2)])) == 2, "no way in circles"


def test_the_sum_of_steps_tells_what_none_of_them_does() -> None:
    steps = [step(3, -0.03, 0.03), step(2, -0.03, 0.03), step(1, -0.03, 0.03)]
    assert behind(steps, 2.0) is None
    found = behind([step(4, -0.04, 0.03), *steps], 2.0)
    assert found is not None
    assert (found.version, found.steps) == (base_ref(1), 4)
    assert found.difference == pytest.approx(-0.13)
    assert found.error == pytest.approx(0.06)
    assert behind([step(1, -9.0, 0.1)], 2.0) is None, "one step is its own experiment's business"
    assert behind([], 2.0) is None


def test_what_is_hardly_known_is_taken_for_little() -> None:
    found = PromotionStep.measured(base_ref(1), -0.2, LIKELY_STEP)
    assert (found.difference, found.squared_error) == (pytest.approx(-0.1), pytest.approx(LIKELY_STEP**2 / 2))
    lucky, known = PromotionStep.measured(base_ref(1), 0.5, 0.15), PromotionStep.measured(base_ref(1), -0.05, 0.001)
    assert lucky.difference < 0.1
    assert known.difference == pytest.approx(-0.05, abs=1e-4)
    assert PromotionStep.measured(base_ref(1), 0.0, math.inf) == PromotionStep(base_ref(1), 0.0, LIKELY_STEP**2)


def test_the_best_so_far_is_what_counts_and_not_the_first() -> None:
    """The reward rose by one step before it fell."""
    found = behind([step(3, -0.1, 0.03), step(2, -0.1, 0.03), step(1, 0.5, 0.03)], 2.0)
    assert found is not None
    assert found.version == base_ref(2)
    assert behind([step(2, -0.1, math.inf), step(1, -0.1, 0.01)], 2.0) is None, "what nobody knows says nothing"


def arm(users: int, mean: float, spread: float) -> ArmStatistics:
    made = ArmStatistics()
    for user in range(users):
        made.add(str(user), mean + (spread if user % 2 else -spread))
    return made


def test_a_canary_is_held_against_earlier_versions_before_it_is_promoted() -> None:
    arms = arm(100, 0.1, 0.2), arm(400, 0.12, 0.2)  # an error of 0.022
    settings = CanarySettings(horizon_turns=100)
    before = [step(2, -0.03, 0.02), step(1, -0.03, 0.02)]
    assert judge(*arms, 0.0, settings, base_ref(3)).action == "promote"
    assert judge(*arms, 0.0, settings, base_ref(3), [step(2, -0.01, 0.02)]).action == "promote"
    refused = judge(*arms, 0.0, settings, base_ref(3), before)
    assert (refused.action, refused.back_to) == ("rollback", base_ref(1))
    assert refused.why.startswith("worse than version 1: reward -0.07")
    assert judge(*arms, 0.0, CanarySettings(horizon_turns=101), base_ref(3), before).action == "wait", (
        "not before its end"
    )
    better = judge(arm(100, 0.5, 0.2), arms[1], 0.0, settings, base_ref(3), before)
    assert (better.action, better.back_to) == ("promote", None)


def test_the_benchmarks_evidence_is_the_products() -> None:
    habits = draw_habits(trial=0, users=60)
    turns = draw(habits, live=0.5, canary=0.4, seed=(0, 1))
    arms = {True: ArmStatistics(), False: ArmStatistics()}
    seen = 0
    for canary, live, age_s in looks(turns, 60, most=4):
        while turns.at_s[seen] <= age_s:
            arms[bool(turns.on_canary[seen])].add(str(turns.user[seen]), float(turns.value[seen]))
            seen += 1
        for found, kept in ((canary, arms[True]), (live, arms[False])):
            assert (found.turns, found.users) == (kept.turns, kept.users)
            assert found.mean == pytest.approx(kept.mean)
            assert found.squared_error == pytest.approx(kept.squared_error)
    assert arms[True].turns == CanarySettings().horizon_turns


# ------------------------------------------------------------------------------------------------ in a world


def tried(world: ReleaseWorld, difference: float) -> int:
    """Judge the next canary; return its version."""
    version = world.publish(world.live or 1)
    world.run()
    assert world.states()[version] == "canary"
    plant_arms(world, 20, canary=0.5 + difference, live=0.5, first=1000 * version)
    world.pass_time(11)
    return version


def test_a_third_small_step_down_is_refused(start_world: MakeWorld) -> None:
    world = start_world(settings=SETTINGS)
    first, second = tried(world, -0.015), tried(world, -0.005)
    assert world.live == second, "each is within what cannot be told"
    third = tried(world, -0.03)
    assert world.states()[third] == "rolled_back"
    assert world.why(third).startswith("worse than version 1: reward -0.0")
    assert world.states() == {1: "live", first: "rolled_back", second: "rolled_back", third: "rolled_back"}
    assert world.why(second).startswith("its steps since version 1 led down, and the next one, too")
    assert world.check_one_lives() == 1
    assert tried(world, 0.3) == world.live, "and it goes on from there"


def test_what_is_worse_by_itself_takes_nothing_along_that_went_up(start_world: MakeWorld) -> None:
    world = start_world(settings=SETTINGS)
    tried(world, 0.1)
    live = tried(world, 0.1)
    bad = tried(world, -0.5)
    assert world.states()[bad] == "rolled_back"
    assert world.check_one_lives() == live
