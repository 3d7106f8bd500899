"""The loss per token, and the importance ratio at unchanged weights."""

import math
from collections.abc import Mapping

import pytest
import torch
from changed_settings import changed
from hypothesis import given
from hypothesis import strategies as st
from logged_world import MODEL, TEMPERATURE, make_reward, make_turn
from torch import Tensor

from core.settings import ObjectiveSettings
from learner.model.policy_model import PolicyModel
from learner.objective.losses import TokenInputs, TokenLosses, token_losses
from learner.objective.losses.kl import k3
from learner.sequences.joining import merge
from learner.sequences.scored import ScoredTurn
from learner.sequences.tensors import micro_batches


def losses(
    logprobs_N: Tensor,
    behaviour: list[float],
    advantage: list[float],
    keep: list[bool] | None = None,
    anchor: list[float] | None = None,
    entropy: list[float] | None = None,
    settings: Mapping[str, float] = {},
) -> TokenLosses:
    n = len(behaviour)
    given = TokenInputs(
        logprobs_N,
        torch.tensor(entropy or [0.0] * n),
        torch.tensor(behaviour),
        torch.tensor(anchor or behaviour),
        torch.tensor(advantage),
        torch.tensor(keep or [True] * n),
        torch.zeros(n, dtype=torch.long),
    )
    return token_losses(given, changed(ObjectiveSettings(), {"kl.coefficient": 0.0, **settings}), float(n))


@pytest.mark.parametrize("temperature", [TEMPERATURE, 1.0])
def test_at_unchanged_weights_the_ratio_is_one(temperature: float) -> None:
    """Stock transformers sampled the answers with softmax(logits / T); the learner scores them anew."""
    batch = []
    for number in range(12):
        turn = make_turn(number, temperature=temperature)
        batch.append(ScoredTurn(turn, make_reward(turn, 1.0)))
    policy = PolicyModel(MODEL, "cpu")
    for part in micro_batches(merge(batch), batch, 512, "cpu"):
        with torch.no_grad():
            logprobs_N, _ = policy.score(policy.hidden_states(part), part)
        ratio_N = (logprobs_N - part.behaviour_N).exp()
        assert float((ratio_N - 1).abs().max()) <= 1e-4


def test_at_another_temperature_the_ratio_is_not_one() -> None:
    """The test above can fail: the same tokens are scored as if sampled at T = 1."""
    turn = make_turn(0, temperature=TEMPERATURE)
    other = make_turn(0, temperature=TEMPERATURE, logprob_space=make_turn(0).logprob_space)
    policy = PolicyModel(MODEL, "cpu")
    ratios = []
    for each in (turn, other):
        batch = [ScoredTurn(each, make_reward(each, 1.0))]
        (part,) = micro_batches(merge(batch), batch, 512, "cpu")
        with torch.no_grad():
            logprobs_N, _ = policy.score(policy.hidden_states(part), part)
        ratios.append(float((logprobs_N - part.behaviour_N).exp().sub(1).abs().max()))
    assert ratios[0] <= 1e-4 < 1e-2 < ratios[1]


def test_the_gradient_is_that_of_reinforce_times_the_truncated_ratio() -> None:
    """The gradient d loss / d logp is -min(pi / mu, cap) A: none flows through the ratio."""
    logprobs_N = torch.tensor([-1.0, -1.0, -1.0], requires_grad=True)
    found = losses(logprobs_N, [-1.0, -1.5, -3.0], [2.0, -1.0, 1.0])
    found.loss_N.sum().backward()
    assert logprobs_N.grad is not None
    assert logprobs_N.grad.tolist() == pytest.approx([-2.0, math.exp(0.5), -2.0])  # the last ratio e^2 is cut to 2
    assert found.truncated_N.tolist() == [False, False, True]
    assert found.ratio_N.tolist() == pytest.approx([1.0, math.exp(0.5), math.exp(2.0)])


def test_kl_pulls_towards_the_anchor() -> None:
    """The gradient d k3 / d logp is 1 - ref / pi: zero at the anchor, positive above it, negative below."""
    logprobs_N = torch.tensor([-1.0, -1.0, -1.0], requires_grad=True)
    losses(
        logprobs_N, [-1.0] * 3, [0.0] * 3, anchor=[-1.0, -2.0, -0.5], settings={"kl.coefficient": 0.5}
    ).loss_N.sum().backward()
    assert logprobs_N.grad is not None
    assert logprobs_N.grad.tolist() == pytest.approx([0.0, 0.5 * (1 - math.exp(-1)), 0.5 * (1 - math.exp(0.5))])


def test_the_entropy_bonus_is_subtracted() -> None:
    logprobs_N = torch.tensor([-1.0])
    with_bonus = losses(logprobs_N, [-1.0], [0.0], entropy=[3.0], settings={"entropy_coefficient": 0.1})
    assert float(with_bonus.loss_N) == pytest.approx(-0.3)


def test_what_is_not_kept_contributes_nothing() -> None:
    logprobs_N = torch.tensor([-1.0, -2.0], requires_grad=True)
    found = losses(logprobs_N, [-9.0, -2.0], [5.0, 1.0], keep=[False, True], settings={"kl.coefficient": 1.0})
    found.loss_N.sum().backward()
    assert logprobs_N.grad is not None
    assert logprobs_N.grad[0] == 0
    assert float(found.loss_N.detach()[0]) == 0
    assert not found.truncated_N[0]


@given(st.lists(st.floats(-20, 0), min_size=1, max_size=8), st.floats(-3, 3))
def test_k3_is_never_negative(logprobs: list[float], shift: float) -> None:
    here_N = torch.tensor(logprobs, dtype=torch.float64)
    assert bool((k3(here_N, here_N + shift) >= -1e-12).all())


def test_k3_estimates_the_divergence() -> None:
    p, q = torch.tensor([0.7, 0.2, 0.1], dtype=torch.float64), torch.tensor([0.3, 0.3, 0.4], dtype=torch.float64)
    expected = float((p * (p / q).log()).sum())
    assert float((p * k3(p.log(), q.log())).sum()) == pytest.approx(expected, abs=1e-12)


def test_a_turn_that_is_left_out_spoils_nothing_however_far_from_the_anchor_it_is() -> None:
    """Float32 cannot hold exp(200): its gradient times 0 would be NaN, and the whole update would be skipped."""
    alone_N = torch.tensor([-1.0], requires_grad=True)
    both_N = torch.tensor([-1.0, -200.0], requires_grad=True)
    options = {"kl.coefficient": 0.02, "entropy_coefficient": 0.01}
    one = losses(alone_N, [-1.1], [0.5], anchor=[-1.2], settings=options)
    two = losses(both_N, [-1.1, -0.5], [0.5, 0.5], keep=[True, False], anchor=[-1.2, -0.1], settings=options)
    one.loss_N.sum().backward()
    two.loss_N.sum().backward()
    assert alone_N.grad is not None
    assert both_N.grad is not None
    assert both_N.grad.tolist() == [alone_N.grad.item(), 0.0]
    assert torch.isfinite(two.k3_N).all()
    assert two.k3_N[1] > 1e20
