"""Estimates of what a candidate would have earned.

The numbers match the definitions, the intervals hold, and what cannot be told is refused."""

import math
import re
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.learning.off_policy_trials import LEAST, NARROWER, TOO_FAR, run
from learner.off_policy.estimators import OffPolicy, Paired, off_policy, paired
from learner.off_policy.jackknife import estimate, t_quantile
from learner.off_policy.overlap import LoggedTurns, kish, overlap
from learner.off_policy.told import told

NAMES = ("stated", "line", "snips")


def logged(
    seed: int = 0, users: int = 80, spread: float = 0.4, with_values: bool = True, bend: float = 0.0
) -> LoggedTurns:
    """Return turns with weights of mean 1, and higher rewards for what the candidate prefers.

    `bend`: less for what it prefers, or spurns, by far."""
    rng = np.random.default_rng(seed)
    user = np.repeat(np.arange(users), rng.integers(1, 6, users))
    log_ratio = rng.normal(-(spread**2) / 2, spread, len(user))
    likes = rng.normal(0, 0.1, users)[user]
    accepted = 0.5 + 0.12 * log_ratio - bend * log_ratio**2
    reward = (rng.random(len(user)) < accepted + likes).astype(float)
    return LoggedTurns.of(log_ratio, reward, user, rng.random(len(user)) if with_values else None)


def changed(turns: LoggedTurns, **columns: np.ndarray) -> LoggedTurns:
    return LoggedTurns(**{**vars(turns), **columns})


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 1000))
def test_the_values_are_those_of_the_definitions(seed: int) -> None:
    turns = logged(seed, spread=0.2)
    assert turns.value_N is not None
    found, places = off_policy(turns), turns.log_ratio_N
    weights = [math.exp(log_ratio) for log_ratio in places]
    snips = sum(w * r for w, r in zip(weights, turns.reward_N, strict=True)) / sum(weights)
    floored = np.maximum(places, np.quantile(places, 0.01, method="inverted_cdf"))
    slope, level = np.polyfit(floored, turns.reward_N - turns.value_N, 1)
    line = turns.value_N.mean() + level + slope * np.average(floored, weights=weights)
    expected = {"line": line, "snips": snips, "stated": snips if found.bends else line}
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
    error = 1e-9 * (abs(shift) + scale)  # of the numbers that differ, not of what is left of them
    assert one.bends == two.bends
    for name in NAMES:
        assert two.values[name].value == pytest.approx(shift + scale * one.values[name].value, abs=error)
        assert two.values[name].width == pytest.approx(scale * one.values[name].width)
        assert two.gains[name].low == pytest.approx(scale * one.gains[name].low, abs=error)


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 1000), shift=st.floats(-5, 5))
def test_without_predictions_too_a_shift_is_a_shift_and_no_gain(seed: int, shift: float) -> None:
    turns = logged(seed, spread=0.2, with_values=False)
    one, two = off_policy(turns), off_policy(changed(turns, reward_N=shift + turns.reward_N))
    error = 1e-9 * (abs(shift) + 1)
    for name in NAMES:
        assert two.values[name].value == pytest.approx(shift + one.values[name].value, abs=error)
        assert two.gains[name].low == pytest.approx(one.gains[name].low, abs=error)
        assert two.gains[name].high == pytest.approx(one.gains[name].high, abs=error)


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


@pytest.mark.parametrize("name", ["line", "snips"])
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
    assert not found.bends
    for name in NAMES:
        assert found.values[name].value == pytest.approx(turns.reward_N.mean())
        assert (found.gains[name].low, found.gains[name].high) == pytest.approx((0, 0))


def test_two_candidates_are_compared_more_closely_than_each_with_what_answered() -> None:
    one = logged(spread=0.4)
    other = changed(one, log_ratio_N=one.log_ratio_N * 0.9)
    found, alone = paired(one, other), (off_policy(one), off_policy(other))
    for name in ("line", "snips"):
        difference = alone[0].values[name].value - alone[1].values[name].value
        assert found.differences[name].value == pytest.approx(difference)
        assert paired(other, one).differences[name].high == pytest.approx(-found.differences[name].low)
        assert found.differences[name].width < min(each.gains[name].width for each in alone)
        assert paired(one, one).differences[name].width == 0
    refused = changed(one, log_ratio_N=one.log_ratio_N * 20)
    assert paired(one, refused) == Paired(overlap(refused).refused)
    with pytest.raises(ValueError, match="not compared on the same turns"):
        paired(one, logged(seed=1))


def test_true_predictions_narrow_the_line() -> None:
    turns = logged(spread=0.8, users=300)
    knowing = changed(turns, value_N=turns.reward_N - 0.01 * turns.log_ratio_N)
    found = off_policy(knowing)
    assert found.values["line"].width < 0.9 * off_policy(turns).values["line"].width
    assert found.gains["line"].width < 0.02


def test_a_line_says_more_where_it_is_straight() -> None:
    found = [off_policy(logged(seed, users=300, spread=1.2, with_values=False)) for seed in range(20)]
    narrower = [each.gains["stated"].width / each.gains["snips"].width for each in found if not each.bends]
    assert len(narrower) > 8
    assert np.median(narrower) < 0.9


def test_where_the_rewards_bend_both_estimates_have_to_agree() -> None:
    found = off_policy(logged(users=300, spread=1.0, bend=0.1))
    assert found.bends
    for estimates in (found.values, found.gains):
        stated, line, snips = (estimates[name] for name in NAMES)
        assert (stated.low, stated.high) == (min(line.low, snips.low), max(line.high, snips.high))
        assert stated.value == snips.value
        assert line.low > snips.value  # what the line alone would have said


def test_few_answers_that_the_candidate_never_gives_leave_the_line_as_it_is() -> None:
    turns = logged(users=300)
    never = turns.log_ratio_N.copy()
    lowest = np.argsort(never)[:3]
    never[lowest] = -math.inf
    one, other = off_policy(turns).values["line"], off_policy(changed(turns, log_ratio_N=never)).values["line"]
    assert (other.low, other.high) == pytest.approx((one.low, one.high), abs=0.01)


@pytest.mark.parametrize(
    ("turns", "said"),
    [
        (logged(users=20), "cannot say what the candidate would have earned: not enough overlap"),
        (logged(users=300, spread=1.0, bend=0.1), "two estimates have to agree"),
        (logged(users=300, spread=1.0), "these turns show no bend"),
    ],
)
def test_what_is_found_is_said_in_words(turns: LoggedTurns, said: str) -> None:
    found = off_policy(turns)
    assert said in told(found)
    for stated in (found.gains["stated"].value, found.gains["stated"].low) if found.gains else ():
        assert f"{stated:+.3f}" in told(found)


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


def test_no_interval_where_one_user_is_nearly_all_turns() -> None:
    """Its turns hardly weigh here, so that the weights are those of many users; the line is fitted to all turns."""
    rng = np.random.default_rng(0)
    log_ratio_N = np.concatenate([np.full(2000, math.log(0.02)), rng.normal(math.log(4), 0.3, 600)])
    log_ratio_N -= math.log(np.exp(log_ratio_N).mean())
    user_N = np.concatenate([np.zeros(2000, int), 1 + np.arange(600) // 10])
    found = off_policy(LoggedTurns.of(log_ratio_N, rng.normal(size=2600), user_N))
    assert found.overlap.effective_clusters > 30
    assert found.overlap.refused == "too few users: 2600 turns are those of 1.7 users, not 30"
    assert not found.gains


def test_an_answer_the_candidate_never_gives_weighs_nothing() -> None:
    turns = logged()
    assert off_policy(with_one("log_ratio_N", -math.inf)).values["snips"].value == pytest.approx(
        off_policy(with_one("log_ratio_N", -700.0)).values["snips"].value
    )
    assert overlap(turns).refused is None


def test_columns_of_other_lengths_are_named() -> None:
    with pytest.raises(ValueError, match=r"rewards: \(1,\) for \(2,\) turns"):
        LoggedTurns.of([0.0, 0.0], [1.0], ["a", "b"])


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


def test_intervals_hold_the_truth_and_are_half_as_wide() -> None:
    """The benchmark's trials, but fewer: 100 with 95% coverage are below 88 once in 500 times."""
    ended = run(1.0, 110)
    assert len(ended.bent) >= 90
    assert np.mean(ended.covered["stated"]) > LEAST - 0.05
    assert np.mean(ended.gain_covered["stated"]) > LEAST - 0.05
    assert np.median(ended.gain_widths["stated"]) < 1.1 * NARROWER * np.median(ended.gain_widths["snips"])


def test_what_went_too_far_in_a_good_direction_is_seen_to_bend() -> None:
    ended = run(1.0, 40, "overdone")
    assert np.mean(ended.bent) > 0.8
    assert np.mean(ended.gain_covered["line"]) < 0.3
    assert np.mean(ended.gain_covered["stated"]) > 0.8


def test_candidates_too_far_away_are_refused() -> None:
    assert run(TOO_FAR, 20).refused == 20
