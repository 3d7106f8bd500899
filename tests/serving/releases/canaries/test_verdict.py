"""The verdict that evidence leads to."""

import math
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.settings import CanarySettings
from core.statistics.sequential import confidence_sequence
from serving.releases.canaries.evidence import ArmStatistics
from serving.releases.canaries.verdict import EFFECT, CanaryVerdict, drifted, judge, judge_few

SETTINGS = CanarySettings()


def arm(users: int, mean: float, turns_each: int = 5, spread: float = 0.1) -> ArmStatistics:
    made = ArmStatistics()
    for user in range(users):
        for _ in range(turns_each):
            made.add(str(user), mean + (spread if user % 2 else -spread))
    return made


def verdict(canary: ArmStatistics, live: ArmStatistics, age_s: float = 0.0, **settings: Any) -> CanaryVerdict:
    return judge(canary, live, age_s, CanarySettings(**settings))


def test_worse_is_rolled_back_and_better_is_promoted_before_the_horizon() -> None:
    worse = verdict(arm(60, 0.1), arm(240, 0.4))
    assert (worse.action, worse.why[:5]) == ("rollback", "worse")
    better = verdict(arm(60, 0.4), arm(240, 0.1))
    assert (better.action, better.why[:8]) == ("promote", "no worse")
    assert better.figures["low"] > -SETTINGS.margin


def test_the_undecided_waits_for_the_horizon_and_is_then_promoted() -> None:
    canary, live = arm(40, 0.2, spread=0.5), arm(160, 0.2, spread=0.5)
    assert verdict(canary, live).action == "wait"
    assert verdict(canary, live, horizon_turns=201).action == "wait"
    assert verdict(canary, live, horizon_turns=200).action == "promote"
    assert verdict(canary, live, age_s=59.0, horizon_s=60).action == "wait"
    at_last = verdict(canary, live, age_s=60.0, horizon_s=60)
    assert (at_last.action, at_last.why[:12]) == ("promote", "not shown to")


def test_what_is_worse_at_the_horizon_is_rolled_back_all_the_same() -> None:
    assert verdict(arm(60, 0.1), arm(240, 0.4), age_s=1e9, horizon_turns=1).action == "rollback"


def test_too_few_users_decide_nothing_but_the_horizon() -> None:
    canary, live = arm(SETTINGS.min_users - 1, -1.0), arm(200, 1.0)
    assert verdict(canary, live).action == "wait"
    assert verdict(canary, live, min_users=SETTINGS.min_users - 1).action == "rollback"
    assert verdict(ArmStatistics(), ArmStatistics(), age_s=1e9).action == "promote"


@pytest.mark.parametrize("by", [judge, judge_few])
def test_no_user_brings_the_horizon_for_all(by: Callable[..., CanaryVerdict]) -> None:
    """Else whoever asks much has every version go live before anybody knows what it is worth."""
    canary, live = arm(9, 0.2, 1), arm(9, 0.2, 1)
    for _ in range(100_000):
        canary.add("mallory", 0.2)
    assert by(canary, live, 0.0, SETTINGS).action == "wait"
    for _ in range(SETTINGS.horizon_turns // 5):
        for user in range(4):
            canary.add(str(user), 0.2)
    assert by(canary, live, 0.0, SETTINGS).why.startswith("not shown to be worse by the horizon")


def test_a_margin_lets_a_little_worse_pass() -> None:
    canary, live = arm(400, 0.195), arm(1600, 0.2)
    assert verdict(canary, live, margin=0.0, horizon_turns=10_000).action == "wait"
    assert verdict(canary, live, margin=0.06, horizon_turns=10_000).action == "promote"


def test_drift_takes_back_what_is_worse_than_the_first_version_and_promotes_nothing() -> None:
    assert drifted(arm(200, 0.1), arm(50, 0.4), SETTINGS).action == "rollback"
    for live, holdback in ((arm(200, 0.4), arm(50, 0.1)), (arm(200, 0.2), arm(50, 0.2)), (arm(200, -1), arm(5, 1))):
        assert drifted(live, holdback, SETTINGS).action == "wait"


def test_over_all_horizons_drift_spends_alpha_once() -> None:
    """Each horizon's interval is the sequence's at its share of alpha; the shares sum to alpha."""
    live, holdback = arm(200, 0.35), arm(50, 0.4)
    lows = [drifted(live, holdback, SETTINGS, horizons).figures["low"] for horizons in (0, 1, 9)]
    assert lows == sorted(lows, reverse=True)
    shares = [6 / math.pi**2 / number**2 for number in range(1, 10_000)]
    assert sum(shares) == pytest.approx(1, abs=1e-3)
    error = math.sqrt(live.squared_error + holdback.squared_error)
    for low, share in zip(lows, (shares[0], shares[1], shares[9]), strict=True):
        told = confidence_sequence(live.mean - holdback.mean, error, SETTINGS.alpha * share, EFFECT)
        assert low == pytest.approx(told.low)


turns = st.lists(st.tuples(st.integers(0, 8), st.floats(-1, 1)), max_size=40)


@given(turns, turns, st.floats(0, 2e5), st.floats(0, 0.5), st.integers(1, 60))
def test_the_verdict_is_what_its_figures_say(
    canary: list[tuple[int, float]], live: list[tuple[int, float]], age_s: float, margin: float, horizon_turns: int
) -> None:
    arms = ArmStatistics(), ArmStatistics()
    for made, seen in zip(arms, (canary, live), strict=True):
        for user, value in seen:
            made.add(str(user), value)
    found = verdict(*arms, age_s, margin=margin, horizon_turns=horizon_turns, min_users=3)
    everybody = len({user for user, _ in (*canary, *live)})
    of_one = horizon_turns / min(5, max(1, everybody // 2))
    counted = sum(min(of_one, turns) for turns in Counter(user for user, _ in canary).values())
    at_horizon = counted >= horizon_turns or age_s >= SETTINGS.horizon_s
    if found.figures["high"] < 0:
        expected = "rollback"
    elif found.figures["low"] > -margin or at_horizon:
        expected = "promote"
    else:
        expected = "wait"
    assert found.action == expected
    assert found.figures["turns"] == len(canary)
    assert found.figures["control_users"] == len({user for user, _ in live})
    if min(arms[0].users, arms[1].users) < 3:
        assert found.figures["high"] == math.inf
    else:
        assert found.figures["difference"] == pytest.approx(arms[0].mean - arms[1].mean)
