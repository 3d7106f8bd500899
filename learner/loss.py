"""The loss per sampled token.

With mu the distribution the token was sampled from, pi the current policy and ref the anchor:

    ratio = pi / mu, truncated at `cap`, no gradient        TIS: Retrace, arXiv:1606.02647
    pg    = -ratio * A * log pi                             REINFORCE with a baseline
    k3    = exp(d) - 1 - d, d = log ref - log pi            unbiased, non-negative estimate of KL(pi || ref); in the
                                                            loss, as GRPO has it (arXiv:2402.03300)
    loss  = pg + beta * k3 - eta * entropy

Legend: N sampled tokens of a micro-batch.
"""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class TokenLosses:
    """Each [N]; `loss_N` has a gradient, the rest are figures."""

    loss_N: Tensor
    ratio_N: Tensor
    k3_N: Tensor
    truncated_N: Tensor


def k3(logprobs_N: Tensor, other_N: Tensor) -> Tensor:
    """Schulman's third estimate of KL(policy || other), from samples of the policy."""
    difference_N = other_N - logprobs_N
    return difference_N.exp() - 1 - difference_N


def token_losses(
    logprobs_N: Tensor,
    entropy_N: Tensor,
    behaviour_N: Tensor,
    anchor_N: Tensor,
    advantage_N: Tensor,
    keep_N: Tensor,
    *,
    ratio_cap: float,
    kl_coefficient: float,
    entropy_coefficient: float,
) -> TokenLosses:
    """Tokens where `keep_N` is false contribute nothing."""
    ratio_N = (logprobs_N.detach() - behaviour_N).exp()
    k3_N = k3(logprobs_N, anchor_N)
    loss_N = -ratio_N.clamp(max=ratio_cap) * advantage_N * logprobs_N + kl_coefficient * k3_N
    if entropy_coefficient:
        loss_N = loss_N - entropy_coefficient * entropy_N
    loss_N = torch.where(keep_N, loss_N, 0.0)
    return TokenLosses(loss_N, ratio_N, k3_N.detach(), (ratio_N > ratio_cap) & keep_N)
