"""Generalised advantage estimation, arXiv:1506.02438.

With V_t the value before token t, 0 after the episode's last token, and the reward at the episode's end:

    delta_t = r_t + gamma V_{t+1} - V_t
    A_t     = delta_t + gamma lambda A_{t+1}

At gamma = lambda = 1 it is R - V_t.

Legend: N sampled tokens of a micro-batch."""

import torch
from torch import Tensor

from learner.objective.credit import TokenCredit, follows_on, to_go


def advantages(values_N: Tensor, credit: TokenCredit, gamma: float, lam: float) -> Tensor:
    goes_on_N = follows_on(credit.episodes_N)
    next_N = torch.where(goes_on_N, values_N.roll(-1), 0.0)
    rewards_N = torch.where(goes_on_N, 0.0, credit.rewards_N)
    return to_go(rewards_N + gamma * next_N - values_N, credit.episodes_N, gamma * lam)
