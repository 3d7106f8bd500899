"""The assignment of users to arms."""

from collections import Counter
from math import sqrt

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.errors import ConfigError
from serving.releases.canaries.assignment import Shares, assign, point

USERS = [f"user-{number}" for number in range(20_000)]
shares = st.floats(0, 1)


@given(st.text(), st.text(), st.text(), shares, shares)
def test_a_user_stays_where_it_is_and_the_propensity_is_that_of_its_arm(
    unit: str, salt: str, other: str, canary: float, holdback: float
) -> None:
    given_shares = Shares(canary, holdback, salt, other)
    arm, propensity = assign(given_shares, unit)
    assert assign(given_shares, unit) == (arm, propensity)
    of_arm = {"holdback": holdback, "canary": (1 - holdback) * canary, "live": (1 - holdback) * (1 - canary)}
    assert propensity == of_arm[arm]
    assert propensity > 0
    assert sum(of_arm.values()) == pytest.approx(1)


@given(st.text(), st.text(), shares, shares, shares)
def test_a_larger_share_keeps_who_was_in_it(unit: str, salt: str, one: float, two: float, holdback: float) -> None:
    small, large = sorted((one, two))
    if assign(Shares(small, holdback, salt, "h"), unit)[0] == "canary":
        assert assign(Shares(large, holdback, salt, "h"), unit)[0] == "canary"


@given(st.text(), st.text())
def test_a_point_is_a_share(salt: str, unit: str) -> None:
    assert 0 <= point(salt, unit) < 1


@pytest.mark.parametrize(("canary", "holdback"), [(0.2, 0.0), (0.2, 0.05), (0.5, 0.3), (0.0, 0.1), (1.0, 0.0)])
def test_arms_have_the_shares_that_the_propensities_say(canary: float, holdback: float) -> None:
    found = [assign(Shares(canary, holdback, "salt", "holdback"), user) for user in USERS]
    said = dict(found)
    for arm, count in Counter(arm for arm, _ in found).items():
        error = sqrt(said[arm] * (1 - said[arm]) / len(USERS))
        assert count / len(USERS) == pytest.approx(said[arm], abs=4 * error + 1e-12)
    assert set(said) == {arm for arm, share in (("canary", canary), ("holdback", holdback)) if share} | (
        {"live"} if canary < 1 else set()
    )


def test_one_experiments_users_are_no_others() -> None:
    """Points under two salts are uniform and independent, so each canary's users are a fair draw."""
    one = np.array([point("one", user) for user in USERS])
    two = np.array([point("two", user) for user in USERS])
    counts, _, _ = np.histogram2d(one, two, bins=10, range=[[0, 1], [0, 1]])
    expected = len(USERS) / 100
    chi_square = ((counts - expected) ** 2 / expected).sum()
    assert chi_square < 99 + 4 * sqrt(2 * 99)


def test_a_new_canary_leaves_the_held_back_where_they_are() -> None:
    held = [{u for u in USERS if assign(Shares(0.2, 0.1, salt, "h"), u)[0] == "holdback"} for salt in ("one", "two")]
    tried = [{u for u in USERS if assign(Shares(0.2, 0.1, salt, "h"), u)[0] == "canary"} for salt in ("one", "two")]
    assert held[0] == held[1] != set()
    assert 0.1 < len(tried[0] & tried[1]) / len(tried[0]) < 0.3


@pytest.mark.parametrize("share", [-0.1, 1.1, float("nan")])
def test_a_share_that_is_none_is_named(share: float) -> None:
    with pytest.raises(ConfigError, match=r"release\.canary\.share"):
        Shares(share, 0.0)
    with pytest.raises(ConfigError, match=r"release\.holdback\.share"):
        Shares(0.0, share)
