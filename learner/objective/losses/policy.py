"""The policy term of the loss.

With r = pi / mu of a token, mu the policy that sampled it:

    policy_gradient  -w * A * log pi                         REINFORCE; w from `corrections`, without gradient
    ppo              -min(r A, clip(r, 1 - low, 1 + high) A)  arXiv:1707.06347; where A < 0 not below c A in the
                                                             objective (dual clip, arXiv:1912.09729). The old policy is
                                                             mu: each batch is learned from once

Legend: N sampled tokens of a micro-batch."""

import torch
from torch import Tensor

from core.settings import ObjectiveSettings
from learner.objective.losses.corrections import weights, within

_LARGEST_LOG_RATIO = 20.0  # beyond it a ratio counts as e^20: infinite ones would make gradients that are no numbers


def policy_loss(
    logprobs_N: Tensor, behaviour_N: Tensor, advantage_N: Tensor, turns_N: Tensor, settings: ObjectiveSettings
) -> tuple[Tensor, Tensor]:
    """Return (loss_N, changed_N); the latter is true where a bound took effect."""
    if settings.loss == "ppo":
        return _ppo(logprobs_N, behaviour_N, advantage_N, turns_N, settings)
    weight_N, changed_N = weights(logprobs_N.detach() - behaviour_N, turns_N, settings.correction)
    return -weight_N * advantage_N * logprobs_N, changed_N


def _ppo(
    logprobs_N: Tensor, behaviour_N: Tensor, advantage_N: Tensor, turns_N: Tensor, settings: ObjectiveSettings
) -> tuple[Tensor, Tensor]:
    log_ratio_N = (logprobs_N - behaviour_N).clamp(max=_LARGEST_LOG_RATIO)
    ratio_N = log_ratio_N.exp()
    free_N = ratio_N * advantage_N
    objective_N = torch.minimum(free_N, ratio_N.clamp(1 - settings.clip_low, 1 + settings.clip_high) * advantage_N)
    if settings.dual_clip is not None:
        floor_N = torch.where(advantage_N < 0, settings.dual_clip * advantage_N, -torch.inf)
        objective_N = torch.maximum(objective_N, floor_N)
    within_N = within(log_ratio_N.detach(), turns_N, settings.correction)
    return torch.where(within_N, -objective_N, 0.0), ~within_N | (objective_N != free_N)
