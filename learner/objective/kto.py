"""KTO for late turns, whose importance weights say nothing any more (Ethayarajh et al., arXiv:2402.01306).

It compares the policy with the anchor and needs no behaviour log-probabilities. With r = beta * (log pi - log ref)
summed over a turn's tokens, and z the mean r of the batch's turns, not below 0 and without a gradient:

    loss = |g| * (1 - sigmoid(r - z))   of a turn whose reward is better than what was applied of it (nothing: 0)
    loss = |g| * (1 - sigmoid(z - r))   of one whose reward is worse

divided by beta, so that its gradient is of the size of the others'. g is what the reward gained or lost, divided by the
turn's scale, as advantages are: a small correction moves little, and a user who counts for less does so here, too.

Legend: N sampled tokens of a micro-batch, M turns of the batch."""

import torch
from torch import Tensor


def turn_ratios(logprobs_N: Tensor, anchor_N: Tensor, turns_N: Tensor, num_turns: int, beta: float) -> Tensor:
    """Return [M]: r of each turn of the micro-batch; 0 of the others."""
    difference_N = logprobs_N - anchor_N
    return beta * difference_N.new_zeros(num_turns).index_add(0, turns_N, difference_N)


def reference_of(ratio_M: Tensor) -> float:
    """Return z, from the r of all turns of the batch."""
    return float(ratio_M.mean().clamp(min=0))


def kto_loss(ratio_M: Tensor, late_M: Tensor, gain_M: Tensor, reference: float, beta: float) -> Tensor:
    """Return the sum over the late turns that gained or lost anything.

    `late_M`: those of one micro-batch. `gain_M`: reward less what was applied, in scales."""
    margin_M = gain_M.sign() * (ratio_M - reference)
    counts_M = late_M & (gain_M != 0)
    return torch.where(counts_M, gain_M.abs() * torch.sigmoid(-margin_M), 0.0).sum() / beta
