"""Every baseline against its formula, repeated here in plain numpy, over streams of batches."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from logged_world import make_reward, make_turn

from core.ids import GroupId
from learner.objective.advantages import Advantages
from learner.objective.advantages.batch import BatchBaseline
from learner.objective.advantages.beta import BetaBaseline
from learner.objective.advantages.ema import EmaBaseline
from learner.objective.advantages.leave_one_out import LeaveOneOut
from learner.objective.advantages.raw import RawReward
from learner.objective.credit import TokenCredit
from learner.sequences.scored import ScoredTurn

Floats = np.ndarray  # of float64


@dataclass(frozen=True)
class One:
    """A turn as the definitions see it."""

    stratum: int
    group: int
    reward: float
    shift: float


ONES = st.builds(
    One, st.integers(0, 2), st.integers(0, 3), st.sampled_from([-1.0, -0.5, 0.25, 1.0]), st.floats(0, 0.05)
)
STREAMS = st.lists(st.lists(ONES, min_size=2, max_size=7), min_size=1, max_size=4)


@lru_cache(maxsize=4096)
def scored(one: One) -> ScoredTurn:
    turn = make_turn(0, workload=f"w{one.stratum}", group_id=GroupId(f"g{one.group}"))
    return ScoredTurn(turn, make_reward(turn, one.reward))


def learned(advantages: Advantages, stream: list[list[One]]) -> list[Floats]:
    found = []
    for batch in stream:
        turns = [scored(one) for one in batch]
        rewards_M = torch.tensor([one.reward for one in batch])
        advantages.begin(turns, rewards_M)
        turns_N = torch.arange(len(batch))
        baseline_N, _ = advantages.tokens(torch.zeros(len(batch), 2), TokenCredit(turns_N, rewards_M))
        found.append(((rewards_M - baseline_N) / torch.tensor(advantages.scales)).double().numpy())
        advantages.end(torch.tensor([one.shift for one in batch], dtype=torch.float64))
    return found


def rewards(batch: list[One]) -> Floats:
    return np.array([one.reward for one in batch])


def white(values: Floats) -> Floats:
    return (values - values.mean()) / max(values.std(ddof=1), 0.05)


def moving(stream: list[list[One]], decay: float) -> list[Floats]:
    """Return R - b of each turn, with b from before its batch."""
    averages: dict[int, float] = {}
    found = []
    for batch in stream:
        mean = rewards(batch).mean()
        found.append(rewards(batch) - np.array([averages.get(one.stratum, mean) for one in batch]))
        for one in batch:
            averages[one.stratum] = decay * averages.get(one.stratum, one.reward) + (1 - decay) * one.reward
    return found


def by_ema(stream: list[list[One]]) -> list[Floats]:
    return [white(differences) for differences in moving(stream, 0.9)]


def by_beta(stream: list[list[One]]) -> list[Floats]:
    """Return the advantages of SPO, with rewards of -1 to 1 mapped to 0 to 1."""
    evidence: dict[int, Floats] = {}
    found = []
    for batch in stream:
        prior = ((rewards(batch) + 1) / 2).mean()
        for one in batch:
            evidence.setdefault(one.stratum, np.array([prior, 1 - prior]) / (1 - 0.875))
        expected = np.array([evidence[one.stratum][0] / evidence[one.stratum].sum() for one in batch])
        found.append(white(rewards(batch) - (2 * expected - 1)))
        for key in {one.stratum for one in batch}:
            mine = [one for one in batch if one.stratum == key]
            rho = np.clip(2.0 ** (-np.mean([one.shift for one in mine]) / 0.06), 0.875, 0.96)
            for one in mine:
                success = (one.reward + 1) / 2
                evidence[key] = rho * evidence[key] + np.array([success, 1 - success])
    return found


def by_leaving_one_out(stream: list[list[One]]) -> list[Floats]:
    found = []
    for batch, alone in zip(stream, moving(stream, 0.9), strict=True):
        advantages = alone.copy()
        for place, one in enumerate(batch):
            others = [other.reward for index, other in enumerate(batch) if other.group == one.group and index != place]
            if others:
                advantages[place] = one.reward - np.mean(others)
        found.append(advantages)
    return found


@pytest.mark.parametrize(
    ("make", "define"),
    [
        (lambda: EmaBaseline(0.9), by_ema),
        (lambda: BetaBaseline(-1.0, 1.0), by_beta),
        (lambda: LeaveOneOut(0.9), by_leaving_one_out),
        (lambda: BatchBaseline(whiten=True), lambda stream: [white(rewards(batch)) for batch in stream]),
        (lambda: BatchBaseline(whiten=False), lambda stream: [rewards(b) - rewards(b).mean() for b in stream]),
        (RawReward, lambda stream: [rewards(batch) for batch in stream]),
    ],
    ids=["ema", "beta", "leave_one_out", "batch", "centre", "raw"],
)
@settings(max_examples=40, deadline=None)
@given(stream=STREAMS)
def test_advantages_are_as_defined(
    make: Callable[[], Advantages], define: Callable[[list[list[One]]], list[Floats]], stream: list[list[One]]
) -> None:
    for mine, defined in zip(learned(make(), stream), define(stream), strict=True):
        np.testing.assert_allclose(mine, defined, atol=1e-5)


def test_the_tracker_forgets_sooner_the_further_the_policy_has_gone() -> None:
    near, far, broken = (BetaBaseline(-1.0, 1.0) for _ in range(3))
    for tracker, shift in ((near, 0.0), (far, 0.05), (broken, float("nan"))):
        learned(tracker, [[One(0, 0, 1.0, shift)] * 2, [One(0, 0, -1.0, shift)] * 6])
    totals = [sum(tracker.state_dict()["evidence"]["default|w0|"]) for tracker in (near, far, broken)]
    assert totals[0] > totals[1]
    assert totals[1] == totals[2] == pytest.approx(8.0)  # 1 / (1 - 0.875) is where it stays


def test_a_reward_outside_of_the_range_counts_as_its_end() -> None:
    inside, outside = BetaBaseline(-1.0, 1.0), BetaBaseline(-0.5, 0.5)
    learned(inside, [[One(0, 0, 1.0, 0.0), One(0, 0, -1.0, 0.0)]])
    learned(outside, [[One(0, 0, 1.0, 0.0), One(0, 0, -1.0, 0.0)]])
    assert inside.state_dict() == outside.state_dict()
