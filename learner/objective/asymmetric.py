"""Asymmetric clipping: late turns train, and of what they say only that against their answers fades.

It is the tapered importance sampling of TOPR (arXiv:2503.14286). With r = pi / mu of the whole turn, mu the policy that
sampled it, and A a token's advantage, or what a correction adds to it:

    loss = -w * A * log pi,  w = 1 where A >= 0, and min(r, 1) where A < 0, without gradient

A stale answer that was good is imitated however unlikely it has become; one that was bad is unlearned only as far as
the policy would still give it, so that nothing is made ever less likely by turns that are no longer given. Ratios never
weigh more than 1, so that turns may diverge as far as they like. Each token keeps its own credit.

Legend: N sampled tokens of a micro-batch."""

from dataclasses import replace

import torch
from torch import Tensor

from core.settings import ObjectiveSettings
from learner.objective.losses import TokenInputs, TokenLosses
from learner.objective.losses.corrections import turn_sums
from learner.objective.losses.normalisers import normalised


def with_late(
    losses: TokenLosses, given: TokenInputs, late_N: Tensor, settings: ObjectiveSettings, tokens_per_turn: float
) -> TokenLosses:
    """Return the losses with those of the tokens of late turns; other tokens' stay as they are."""
    logprobs_N = torch.where(late_N, given.logprobs_N, given.logprobs_N.detach())  # 0 times infinite is no number
    loss_N = asymmetric_loss(logprobs_N, given.behaviour_N, given.advantage_N, given.turns_N)
    normaliser, constant = settings.policy_normaliser, settings.normaliser_tokens
    loss_N = normalised(torch.where(late_N, loss_N, 0.0), normaliser, given.turns_N, tokens_per_turn, constant)
    return replace(losses, loss_N=losses.loss_N + loss_N, policy_N=losses.policy_N + loss_N.detach())


def asymmetric_loss(logprobs_N: Tensor, behaviour_N: Tensor, advantage_N: Tensor, turns_N: Tensor) -> Tensor:
    """Return the loss of each token. All tokens of a turn are given."""
    ratio_N = turn_sums(logprobs_N.detach() - behaviour_N, turns_N).exp()
    weight_N = torch.where(advantage_N < 0, ratio_N.clamp(max=1.0), 1.0)
    return -weight_N * advantage_N * logprobs_N
