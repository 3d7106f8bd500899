"""Turns of production and of simulation in one update are compared each with their own kind."""

from collections.abc import Callable
from functools import cache

import pytest
import torch
from logged_world import make_reward, make_turn

from core.events import Environment
from core.settings import LearnerSettings
from learner.batches.admission import BatchAdmission
from learner.objective.advantages.base import MIN_SCALE, Advantages
from learner.objective.advantages.batch import BatchBaseline
from learner.objective.advantages.beta import BetaBaseline
from learner.objective.advantages.ema import EmaBaseline
from learner.objective.advantages.sources import sources_of
from learner.objective.advantages.strata import Strata
from learner.objective.advantages.value import ValueHead
from learner.objective.credit import TokenCredit
from learner.sequences.scored import ScoredTurn


def turns(values: list[float], environment: Environment, first: int = 0) -> list[ScoredTurn]:
    made = [make_turn(first + number, environment=environment) for number in range(len(values))]
    return [ScoredTurn(turn, make_reward(turn, value)) for turn, value in zip(made, values, strict=True)]


@cache
def quiet() -> list[ScoredTurn]:
    return turns([0.1, -0.1] * 5, "production")


@cache
def loud() -> list[ScoredTurn]:
    return turns([5.0, 1.0] * 6, "simulated", 40)


def advantages_of(baseline: Advantages, batch: list[ScoredTurn]) -> torch.Tensor:
    rewards_M = torch.tensor([scored.worth for scored in batch])
    baseline.begin(batch, rewards_M)
    found_N, _ = baseline.tokens(torch.zeros(len(batch), 8), TokenCredit(torch.arange(len(batch)), rewards_M))
    return (rewards_M - found_N) / torch.tensor(baseline.scales)


@pytest.mark.parametrize(
    "make", [lambda: BatchBaseline(whiten=True), lambda: EmaBaseline(0.9), lambda: BetaBaseline(-1, 1)]
)
def test_each_source_has_mean_0_and_spread_1(make: Callable[[], Advantages]) -> None:
    found_M = advantages_of(make(), quiet() + loud())
    for part_M in (found_M[: len(quiet())], found_M[len(quiet()) :]):
        assert part_M.mean().abs() < 1e-5
        assert part_M.std() == pytest.approx(1.0, rel=1e-4)


def test_a_value_heads_advantages_are_divided_by_each_sources_spread() -> None:
    head = ValueHead(8, 1e-3, 0, "cpu")
    advantages_of(head, quiet() + loud())
    apart: list[float] = []
    for source in (quiet(), loud()):
        alone = ValueHead(8, 1e-3, 0, "cpu")
        advantages_of(alone, source)
        apart += alone.scales
    assert list(head.scales) == apart
    assert apart[0] < 0.2 < 2 < apart[-1]


def test_one_source_or_a_few_turns_of_another_are_scaled_together() -> None:
    assert sources_of(loud()) == [list(range(12))]
    assert sources_of(quiet()[:7] + loud()) == [list(range(19))]
    assert [len(places) for places in sources_of(quiet()[:8] + loud())] == [8, 12]


def test_strata_know_where_a_turn_came_from_and_keep_productions_names() -> None:
    production, simulated = Strata().of(quiet()[0]), Strata().of(loud()[0])
    assert production.count("|") == 2
    assert simulated == f"{production}|simulated"


def test_a_source_whose_rewards_are_all_alike_does_not_train_and_the_other_does() -> None:
    alike = turns([1.0] * 8, "production")
    ledger = BatchAdmission(alike + loud(), [MIN_SCALE] * 8 + [2.0] * len(loud()), 12.0, LearnerSettings())
    assert ledger._alike_M.tolist() == [True] * len(alike) + [False] * len(loud())
