"""The gradient of each KL estimate in each placement, exactly (docs/decisions/0014-kl-placement.md).

The policy has answers of two tokens out of three, all of which are enumerated.

Legend: K outcomes, T = 2 tokens of each, N = K * T."""

import itertools
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from changed_settings import changed
from torch import Tensor

from core.errors import ConfigError
from core.settings import ObjectiveSettings, load_settings
from learner.objective.credit import to_go
from learner.objective.losses import TokenInputs, token_losses
from learner.objective.losses.kl import Estimator, estimate

OUTCOMES = list(itertools.product(range(3), repeat=2))
TURNS_N = torch.arange(len(OUTCOMES)).repeat_interleave(2)


@dataclass(frozen=True)
class Policy:
    """A policy: logits of the first token, and of the second given the first."""

    logits: Tensor  # [4, 3]

    @property
    def logprobs_KT(self) -> Tensor:
        rows = self.logits.log_softmax(-1)
        return torch.stack([torch.stack([rows[0, first], rows[1 + first, second]]) for first, second in OUTCOMES])


def pair(distance: float, seed: int) -> tuple[Policy, Tensor]:
    """Return a policy and its anchor's log-probabilities [K, T], at this distance."""
    generator = torch.Generator().manual_seed(seed)
    anchor = torch.randn(4, 3, generator=generator, dtype=torch.float64)
    step = torch.randn(4, 3, generator=generator, dtype=torch.float64)
    return Policy((anchor + distance * step).requires_grad_()), Policy(anchor).logprobs_KT


def gradient(policy: Policy, loss: Tensor) -> Tensor:
    return torch.autograd.grad(loss, policy.logits, retain_graph=True)[0]


def exact(policy: Policy, anchor_KT: Tensor) -> Tensor:
    """Return the gradient of KL(policy || anchor) over whole outcomes."""
    logprobs_K = policy.logprobs_KT.sum(1)
    return gradient(policy, (logprobs_K.exp() * (logprobs_K - anchor_KT.sum(1))).sum())


def expected(policy: Policy, anchor_KT: Tensor, estimator: Estimator, placement: str) -> Tensor:
    """Return the expected gradient over all outcomes, which the policy itself samples."""
    logprobs_N, anchor_N = policy.logprobs_KT.flatten(), anchor_KT.flatten()
    chance_N = policy.logprobs_KT.sum(1).exp().detach()[TURNS_N]
    kl_N = estimate(estimator, logprobs_N, anchor_N)
    if placement == "reward":
        kl_N = to_go(kl_N.detach(), TURNS_N) * logprobs_N
    return gradient(policy, (chance_N * kl_N).sum())


def of_the_learner(policy: Policy, anchor_KT: Tensor, settings: ObjectiveSettings) -> Tensor:
    """Return the expected gradient of the learner's own loss, with zero rewards."""
    logprobs_N = policy.logprobs_KT.flatten()
    zeros_N, ones_N = torch.zeros_like(logprobs_N), torch.ones_like(logprobs_N, dtype=torch.bool)
    given = TokenInputs(logprobs_N, zeros_N, logprobs_N.detach(), anchor_KT.flatten(), zeros_N, ones_N, TURNS_N)
    chance_N = policy.logprobs_KT.sum(1).exp().detach()[TURNS_N]
    return gradient(policy, (chance_N * token_losses(given, settings, 2.0).loss_N).sum())


def likeness(one: Tensor, other: Tensor) -> float:
    return float((one * other).sum() / (one.norm() * other.norm()))


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("distance", [0.1, 1.0, 3.0])
def test_k1_in_the_reward_is_the_exact_gradient(distance: float, seed: int) -> None:
    policy, anchor_KT = pair(distance, seed)
    torch.testing.assert_close(expected(policy, anchor_KT, "k1", "reward"), exact(policy, anchor_KT))


@pytest.mark.parametrize("seed", range(5))
def test_k1_in_the_loss_has_no_gradient(seed: int) -> None:
    policy, anchor_KT = pair(1.0, seed)
    assert float(expected(policy, anchor_KT, "k1", "loss").abs().max()) < 1e-12


@pytest.mark.parametrize("seed", range(5))
def test_k2_in_the_loss_is_the_gradient_of_each_tokens_divergence(seed: int) -> None:
    """The divergence is conditional on the earlier tokens; an influence on which of these come is ignored."""
    policy, anchor_KT = pair(1.0, seed)
    rows, chance_T = policy.logits.log_softmax(-1), policy.logits.log_softmax(-1).exp().detach()
    anchors = torch.cat([anchor_KT[::3, :1].T, anchor_KT[:, 1].view(3, 3)])
    prefix = torch.cat([torch.ones(1, dtype=torch.float64), chance_T[0]])
    divergence = (prefix * (rows.exp() * (rows - anchors)).sum(-1)).sum()
    torch.testing.assert_close(expected(policy, anchor_KT, "k2", "loss"), gradient(policy, divergence))
    backwards = (prefix * (anchors.exp() * (anchors - rows)).sum(-1)).sum()
    torch.testing.assert_close(expected(policy, anchor_KT, "k3", "loss"), gradient(policy, backwards))


@pytest.mark.parametrize("estimator", ["k2", "k3"])
@pytest.mark.parametrize("seed", range(5))
def test_in_the_loss_both_are_exact_near_the_anchor(estimator: Estimator, seed: int) -> None:
    far, near = (pair(distance, seed) for distance in (1e-2, 1e-3))
    misses = [
        float((expected(*each, estimator, "loss") - exact(*each)).norm() / exact(*each).norm()) for each in (far, near)
    ]
    assert misses[1] < 5e-3
    assert misses[1] == pytest.approx(misses[0] / 10, rel=0.2)


@pytest.mark.parametrize("estimator", ["k2", "k3"])
@pytest.mark.parametrize("seed", range(5))
def test_in_the_reward_neither_has_a_gradient_near_the_anchor(estimator: Estimator, seed: int) -> None:
    """Ten times nearer, its share of the exact gradient is ten times less: to first order there is none."""
    far, near = (pair(distance, seed) for distance in (1e-2, 1e-3))
    shares = [float(expected(*each, estimator, "reward").norm() / exact(*each).norm()) for each in (far, near)]
    assert shares[1] < 5e-3
    assert shares[1] == pytest.approx(shares[0] / 10, rel=0.2)


@pytest.mark.parametrize("estimator", ["k2", "k3"])
def test_in_the_reward_both_may_push_away(estimator: Estimator) -> None:
    found = [likeness(expected(*each, estimator, "reward"), exact(*each)) for each in (pair(1.0, s) for s in range(20))]
    assert min(found) < 0 < max(found)
    pulls = [likeness(expected(*each, estimator, "loss"), exact(*each)) for each in (pair(1.0, s) for s in range(20))]
    assert min(pulls) > 0.5


@pytest.mark.parametrize(
    ("estimator", "placement"), [("k1", "reward"), ("k2", "loss"), ("k3", "loss")], ids=lambda name: name
)
def test_the_learners_loss_has_the_gradient_of_the_table(estimator: Estimator, placement: str) -> None:
    options: dict[str, Any] = {"kl.estimator": estimator, "kl.placement": placement, "kl.coefficient": 1.0}
    policy, anchor_KT = pair(1.0, 0)
    found = of_the_learner(policy, anchor_KT, changed(ObjectiveSettings(), options))
    torch.testing.assert_close(found, expected(policy, anchor_KT, estimator, placement))


@pytest.mark.parametrize(("estimator", "placement"), [("k1", "loss"), ("k2", "reward"), ("k3", "reward")])
def test_what_does_not_pull_is_refused(estimator: str, placement: str) -> None:
    environment = {
        "ONWARD_LEARNER__OBJECTIVE__KL__ESTIMATOR": estimator,
        "ONWARD_LEARNER__OBJECTIVE__KL__PLACEMENT": placement,
    }
    with pytest.raises(ConfigError, match=f"learner.objective.kl: .*estimator: {estimator} in the {placement}"):
        load_settings(None, environment)
