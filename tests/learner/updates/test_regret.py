"""The benchmark of ways to learn: its users treat all alike, its learners learn, its arithmetic is as defined."""

import numpy as np
import pytest

from bench.learning.feedback_world import CHOICES, CONTEXTS, STREAMS, Users
from bench.learning.regret import BLOCK, HORIZONS, crossed, rows
from bench.learning.regret_run import DEFAULT, Run, regret
from bench.paired import holm, likelihood_of_chance

RATE, STEPS = 0.012, 100


def test_who_learns_misses_less_and_the_same_again() -> None:
    learned = regret(Run(DEFAULT, "plain", 0, RATE), STEPS)
    stayed = regret(Run("nothing", "plain", 0, RATE), STEPS)
    assert learned[0] == stayed[0]  # the same users, luck and first policy
    assert np.mean(learned[-20:]) < 0.6 * np.mean(stayed[-20:])
    assert regret(Run(DEFAULT, "plain", 0, RATE), STEPS // 4) == learned[: STEPS // 4]


@pytest.mark.parametrize("name", list(STREAMS))
def test_nothing_is_likelier_accepted_than_the_best(name: str) -> None:
    users = Users(STREAMS[name], 3)
    for _ in range(2):
        for context in range(CONTEXTS):
            likely = [users.accepts(context, (one, two)) for one in range(CHOICES) for two in range(CHOICES)]
            assert max(likely) == users.best(context)
            assert min(likely) < max(likely)
        users.drift()


def test_sessions_have_the_turns_that_were_asked_for() -> None:
    users = Users(STREAMS["production"], 0)
    assert [sum(map(len, users.sessions(64))) for _ in range(5)] == [64] * 5


def test_holm_by_hand() -> None:
    assert holm({"a": 0.01, "b": 0.04, "c": 0.03}) == pytest.approx({"a": 0.03, "c": 0.06, "b": 0.06})


def test_chance_is_likely_of_noise_alone() -> None:
    rng = np.random.default_rng(0)
    found = [likelihood_of_chance(rng.normal(0, 1, 20)) for _ in range(100)]
    assert 0.01 < np.mean(np.array(found) < 0.1) < 0.2
    assert likelihood_of_chance(rng.normal(-1, 1, 20)) < 0.01
    assert likelihood_of_chance(rng.normal(1, 1, 20)) > 0.99


@pytest.mark.parametrize(("more", "holds"), [(0.5, True), (0.0, False), (-0.5, False)])
def test_a_row_holds_where_the_default_is_surely_better_and_not_where_it_is_perhaps_no_worse(
    more: float, holds: bool
) -> None:
    """`more` regret: of another way."""
    rng = np.random.default_rng(0)
    curves = [rng.normal(mean, 0.1, (16, max(HORIZONS) // BLOCK)).tolist() for mean in (1.0, 1.0 + more)]
    ways = {way: {"the only rate": seeds} for way, seeds in zip((DEFAULT, "another"), curves, strict=True)}
    judged = [row for row in rows({"plain": ways}) if row.goal is not None]
    assert [row.holds for row in judged] == [holds] * len(HORIZONS)


def test_no_learning_rate_is_chosen_by_what_it_is_judged_by() -> None:
    """Even with pure noise, the better of two rates on the same seeds would look better than it is."""
    rng = np.random.default_rng(0)
    noise = rng.normal(size=(200, 2, 16, 2))
    assert abs(np.mean([crossed({"a": one, "b": two}, BLOCK).mean() for one, two in noise])) < 0.05
    apart = {"a": [[1.0, 0.0]] * 4, "b": [[0.0, 3.0]] * 4}
    assert crossed(apart, BLOCK).tolist() == [0.0] * 4
    assert crossed(apart, 2 * BLOCK).tolist() == [0.5] * 4
