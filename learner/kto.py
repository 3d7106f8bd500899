"""Late turns, for which importance weights say nothing any more: KTO (Ethayarajh et al., arXiv:2402.01306), which
compares the policy with the anchor and needs no behaviour log-probabilities.

With r = beta * (log pi - log ref) of a turn's tokens together and z = the mean r of the micro-batch's turns, not below
0 and without a gradient:

    loss = 1 - sigmoid(r - z)   of a turn whose reward came out better than what was applied of it (nothing: 0)
    loss = 1 - sigmoid(z - r)   of one that came out worse

divided by beta, so that its gradient is of the size of the others'.

Legend: N sampled tokens of a micro-batch, M turns of the batch.
"""

import torch
from torch import Tensor


def kto_loss(
    logprobs_N: Tensor, anchor_N: Tensor, turns_N: Tensor, late_M: Tensor, gain_M: Tensor, beta: float
) -> Tensor:
    """The sum over the late turns of the micro-batch that gained or lost anything. `gain_M`: reward less what was
    applied."""
    ratio_M = beta * torch.zeros_like(gain_M).index_add(0, turns_N, logprobs_N - anchor_N)
    present_M = torch.zeros_like(late_M).index_fill(0, turns_N, True)
    reference = ratio_M.detach()[present_M].mean().clamp(min=0)
    margin_M = gain_M.sign() * (ratio_M - reference)
    counts_M = late_M & present_M & (gain_M != 0)
    return torch.where(counts_M, torch.sigmoid(-margin_M), 0.0).sum() / beta
