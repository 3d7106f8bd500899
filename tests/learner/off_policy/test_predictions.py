"""A turn's expected reward is predicted from other users' turns, and from what is known before the answer."""

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from logged_world import MODEL, make_reward, make_turn

from core.events import Reward
from core.ids import UserHash
from learner.model.policy_model import PolicyModel
from learner.off_policy.log_ratios import logged_turns
from learner.off_policy.predictions import PRIOR_TURNS, predictions
from learner.sequences.scored import ScoredTurn

TURNS = st.lists(st.tuples(st.floats(-1, 1), st.sampled_from("xyz"), st.sampled_from("abcd")), min_size=1, max_size=12)


@given(turns=TURNS)
def test_they_are_means_of_the_others_of_the_stratum_drawn_to_that_of_all_others(
    turns: list[tuple[float, str, str]],
) -> None:
    told = predictions(*map(list, zip(*turns, strict=True)))  # type: ignore[arg-type]
    for (_, stratum, user), prediction in zip(turns, told, strict=True):
        others = [(reward, of) for reward, of, who in turns if who != user]
        near = [reward for reward, of in others if of == stratum]
        overall = sum(reward for reward, _ in others) / max(len(others), 1)
        assert prediction == pytest.approx((sum(near) + PRIOR_TURNS * overall) / (len(near) + PRIOR_TURNS))


def test_a_users_own_words_do_not_move_what_is_expected_of_them() -> None:
    strata, users = ["x", "y"] * 20, [f"{n % 10}" for n in range(40)]
    rewards = np.linspace(-1, 1, 40)
    changed = np.where(np.array(users) == "3", 9.0, rewards)
    one, other = (predictions(values, strata, users) for values in (rewards, changed))
    own = np.array(users) == "3"
    assert other[own] == pytest.approx(one[own])
    assert (other[~own] > one[~own]).all()


def made_of(reward: Reward) -> Reward:
    return msgspec.structs.replace(reward, components={"accepted" if reward.value else "rejected": reward.value})


def test_what_a_reward_was_made_of_is_not_known_before_the_answer() -> None:
    """A channel tells what users did with the answer: it would predict every reward, and hide any gain."""
    made = [make_turn(n, user_id=UserHash(f"{n}"), workload=("write", "ask")[n % 2]) for n in range(8)]
    batch = [ScoredTurn(turn, made_of(make_reward(turn, float(n < 4)))) for n, turn in enumerate(made)]
    told = logged_turns(PolicyModel(MODEL, "cpu"), batch, 1024, "cpu").value_N
    by_hand = predictions([float(n < 4) for n in range(8)], ["write", "ask"] * 4, [f"{n}" for n in range(8)])
    assert told == pytest.approx(by_hand)
