"""Estimates of what a candidate would have earned.

The numbers match the definitions, the intervals hold, and what cannot be told is refused."""

import math
import re
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.learning.off_policy_trials import LEAST, TOO_FAR, WIDEST, run
from learner.off_policy.estimators import OffPolicy, off_policy
from learner.off_policy.jackknife import estimate, quantile_beside, t_quantile
from learner.off_policy.overlap import LoggedTurns, kish, overlap

NAMES = ("snips", "clipped", "dr")


def logged(seed: int = 0, users: int = 80, spread: float = 0.4, with_values: bool = True) -> LoggedTurns:
    """Return turns with weights of mean 1, and higher rewards for what the candidate prefers."""
    rng = np.random.default_rng(seed)
    user = np.repeat(np.arange(users), rng.integers(1, 6, users))
    log_ratio = rng.normal(-(spread**2) / 2, spread, len(user))
    likes = rng.normal(0, 0.1, users)[user]
    reward = (rng.random(len(user)) < 0.5 + 0.2 * np.tanh(log_ratio) + likes).astype(float)
    return LoggedTurns.of(log_ratio, reward, user, rng.random(len(user)) if with_values else None)


def changed(turns: LoggedTurns, **columns: np.ndarray) -> LoggedTurns:
    return LoggedTurns(**{**vars(turns), **columns})


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 1000))
def test_the_values_are_those_of_the_definitions(seed: int) -> None:
    turns = logged(seed, spread=0.2)
    assert turns.value_N is not None
    whole, cut, found = 0.0, 0.0, off_policy(turns)
    snips = clipped = mended = 0.0
    for log_ratio, reward, value in zip(turns.log_ratio_N, turns.reward_N, turns.value_N, strict=True):
        weight = math.exp(log_ratio)
        whole, cut = whole + weight, cut + min(weight, math.sqrt(len(turns.reward_N)))
        snips += weight * reward
        clipped += min(weight, math.sqrt(len(turns.reward_N))) * reward
        mended += weight * (reward - value)
    expected = {"snips": snips / whole, "clipped": clipped / cut, "dr": turns.value_N.mean() + mended / whole}
    assert {name: e.value for name, e in found.values.items()} == pytest.approx(expected)
    earned = turns.reward_N.mean()
    assert {name: e.value + earned for name, e in found.gains.items()} == pytest.approx(expected)
    assert all(e.low <= e.value <= e.high for e in (*found.values.values(), *found.gains.values()))


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 1000), shift=st.floats(-5, 5), scale=st.floats(0.1, 10))
def test_other_units_of_reward_change_units_alone(seed: int, shift: float, scale: float) -> None:
    turns = logged(seed, spread=0.2)
    assert turns.value_N is not None
    other = changed(turns, reward_N=shift + scale * turns.reward_N, value_N=shift + scale * turns.value_N)
    one, two = off_policy(turns), off_policy(other)
    for name in NAMES:
        assert two.values[name].value == pytest.approx(shift + scale * one.values[name].value, abs=1e-9)
        assert two.values[name].width == pytest.approx(scale * one.values[name].width)
        assert two.gains[name].low == pytest.approx(scale * one.gains[name].low, abs=1e-9)


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 1000), order=st.randoms(use_true_random=False))
def test_order_and_names_of_users_do_not_matter(seed: int, order: Random) -> None:
    turns = logged(seed, spread=0.2)
    places = list(range(len(turns.reward_N)))
    order.shuffle(places)
    assert turns.value_N is not None
    names = [f"user {-turns.cluster_N[place]}" for place in places]
    other = LoggedTurns.of(turns.log_ratio_N[places], turns.reward_N[places], names, turns.value_N[places])
    for name, found in off_policy(other).values.items():
        assert found.low == pytest.approx(off_policy(turns).values[name].low)


@pytest.mark.parametrize("name", ["snips", "dr"])
def test_the_same_turns_again_of_the_same_users_are_no_more_evidence(name: str) -> None:
    turns = logged()
    assert turns.value_N is not None
    twice = {key: np.concatenate([column, column]) for key, column in vars(turns).items() if column is not None}
    again, strangers = LoggedTurns(**twice), LoggedTurns(**twice)
    strangers = changed(strangers, cluster_N=np.concatenate([turns.cluster_N, turns.cluster_N + 80]))
    width = off_policy(turns).values[name].width
    assert off_policy(again).values[name].width == pytest.approx(width)
    assert off_policy(strangers).values[name].width == pytest.approx(width / math.sqrt(2), rel=0.02)


def test_of_the_logged_policy_itself_it_is_the_mean_and_no_gain() -> None:
    turns = logged(spread=0.0, with_values=False)
    found = off_policy(turns)
    assert found.overlap.effective == pytest.approx(len(turns.reward_N))
    for name in ("snips", "clipped"):
        assert found.values[name].value == pytest.approx(turns.reward_N.mean())
        assert (found.gains[name].low, found.gains[name].high) == pytest.approx((0, 0))
    assert "dr" not in found.values


def test_true_predictions_narrow_the_interval() -> None:
    turns = logged()
    knowing = changed(turns, value_N=np.full_like(turns.reward_N, 0.5), predicted_N=turns.reward_N)
    assert off_policy(knowing).values["dr"].width < 0.01 * off_policy(turns).values["snips"].width


def test_what_was_cut_off_may_have_earned_anything() -> None:
    """The candidate gives one answer of 900 far more often: the interval's ends grow with the range of rewards."""
    turns = logged(users=300, spread=0.0, with_values=False)
    log_ratio_N = turns.log_ratio_N.copy()
    log_ratio_N[0] = math.log(100)
    cut = changed(turns, log_ratio_N=log_ratio_N - math.log1p(99 / len(log_ratio_N)))
    near, far = off_policy(cut).values["clipped"], off_policy(cut, reward_range=(-10, 10)).values["clipped"]
    assert near.value == far.value
    assert far.low < near.low < near.high < far.high


@pytest.mark.parametrize("confidence", [0.8, 0.95, 0.99])
def test_an_interval_with_room_holds_what_is_at_the_end_of_it(confidence: float) -> None:
    """Errors of 1 are drawn rather than computed, for estimates of either end, `room` apart."""
    drawn = np.random.default_rng(3).normal(size=400_000)
    reaches = []
    for room in (0.0, 0.3, 1.0, 3.0):
        reach = t_quantile(quantile_beside(room, confidence), math.inf)
        held = ((drawn - reach <= 0) & (drawn + room + reach >= 0)).mean()
        assert held == pytest.approx(confidence, abs=0.002)
        reaches.append(reach)
    assert reaches == sorted(reaches, reverse=True)
    assert quantile_beside(0.0, confidence) == (1 + confidence) / 2
    assert quantile_beside(math.inf, confidence) == pytest.approx(confidence)


def with_one(column: str, wrong: float) -> LoggedTurns:
    turns = logged()
    array = getattr(turns, column).copy()
    array[7] = wrong
    return changed(turns, **{column: array})


@pytest.mark.parametrize(
    ("turns", "why"),
    [
        (LoggedTurns.of([], [], []), "no turns"),
        (with_one("log_ratio_N", math.nan), "1 of .* no finite log-ratio, the first at 7"),
        (with_one("log_ratio_N", math.inf), "no finite log-ratio"),
        (with_one("reward_N", math.nan), "no finite reward"),
        (with_one("reward_N", -math.inf), "no finite reward"),
        (with_one("value_N", math.inf), "no finite prediction"),
        (changed(logged(), reward_N=np.full_like(logged().reward_N, 0.5)), "all .* rewards are 0.5"),
        (changed(logged(), log_ratio_N=np.full_like(logged().reward_N, -math.inf)), "said none of it"),
        (changed(logged(), log_ratio_N=np.full_like(logged().reward_N, 600.0)), r"exp\(600\)"),
        (changed(logged(), log_ratio_N=logged().log_ratio_N - 1), "mean weight is 0.3.*, not 1"),
        (logged(users=20), "turns are worth"),
        (with_one("log_ratio_N", 4.5), "250 turns are worth 11.6 users, not 30"),
        (logged(spread=3.0), "not enough overlap"),
        (LoggedTurns.of([0.0], [1.0], ["a"]), "all 1 rewards"),
    ],
)
def test_no_interval_where_none_is_honest(turns: LoggedTurns, why: str) -> None:
    found = off_policy(turns)
    assert found == OffPolicy(found.overlap)
    assert found.overlap.refused is not None
    assert re.search(why, found.overlap.refused), found.overlap.refused


def test_an_answer_the_candidate_never_gives_weighs_nothing() -> None:
    turns = logged()
    assert off_policy(with_one("log_ratio_N", -math.inf)).values["snips"].value == pytest.approx(
        off_policy(with_one("log_ratio_N", -700.0)).values["snips"].value
    )
    assert overlap(turns).refused is None


def test_columns_of_other_lengths_are_named() -> None:
    with pytest.raises(ValueError, match=r"rewards: \(1,\) for \(2,\) turns"):
        LoggedTurns.of([0.0, 0.0], [1.0], ["a", "b"])
    with pytest.raises(ValueError, match="predicted: without values"):
        LoggedTurns.of([0.0], [1.0], ["a"], None, [1.0])


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=50))
def test_kish_lies_between_one_and_all(weights: list[float]) -> None:
    worth = kish(np.array(weights))
    assert worth == 0 if max(weights) == 0 else 1 - 1e-9 <= worth <= len(weights) + 1e-9


def test_the_jackknife_of_a_mean_is_its_textbook_error() -> None:
    values = np.random.default_rng(0).normal(size=50)
    found = estimate({"n": np.ones(50), "x": values}, lambda s: s["x"] / s["n"], 49, 0.95)
    assert (found.high - found.value) / t_quantile(0.975, 49) == pytest.approx(values.std(ddof=1) / math.sqrt(50))


@pytest.mark.parametrize(
    ("probability", "freedom", "table"),
    [(0.975, 5, 2.5706), (0.975, 10, 2.2281), (0.975, 29, 2.0452), (0.9995, 30, 3.6460), (0.025, 10, -2.2281)],
)
def test_students_quantiles(probability: float, freedom: float, table: float) -> None:
    assert t_quantile(probability, freedom) == pytest.approx(table, rel=1e-3)


def test_intervals_hold_the_truth() -> None:
    """The benchmark's trials, but fewer: 100 with 95% coverage are below 88 once in 500 times."""
    ended = run(0.5, 100)
    assert ended.refused == 0
    for name in NAMES:
        assert np.mean(ended.covered[name]) > LEAST - 0.02
        assert np.mean(ended.gain_covered[name]) > LEAST - 0.02
        assert np.median(ended.widths[name]) < WIDEST * np.median(ended.on_policy_widths)


def test_candidates_too_far_away_are_refused() -> None:
    assert run(TOO_FAR, 20).refused == 20
