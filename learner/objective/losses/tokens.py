"""The loss per sampled token, the sum of its terms.

    loss = policy (see `policy`) + beta * KL to the anchor (see `kl`) - eta * entropy

Each term has its own normaliser. When the KL is in the reward instead, each token is also rewarded with -beta * (k1 of
itself and of the tokens after it in its turn), not divided by the scale of advantages.

Legend: N sampled tokens of a micro-batch."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from core.settings import ObjectiveSettings
from learner.objective.credit import to_go
from learner.objective.losses.kl import estimate, k1, k3
from learner.objective.losses.normalisers import normalised
from learner.objective.losses.policy import policy_loss

_FARTHEST = 60.0  # nats, in figures: beyond, the estimate is not a number that can be kept


@dataclass(frozen=True)
class TokenInputs:
    """The inputs of the loss, each [N].

    `logprobs_N` and `entropy_N` have a gradient. `turns_N` says which turn a token is of; a turn's tokens are adjacent
    and in order."""

    logprobs_N: Tensor
    entropy_N: Tensor
    behaviour_N: Tensor
    anchor_N: Tensor
    advantage_N: Tensor
    keep_N: Tensor
    turns_N: Tensor


@dataclass(frozen=True)
class TokenLosses:
    """The losses, each [N].

    `loss_N`, the sum of the three after it, has a gradient; the rest are figures. `truncated_N` is true where a bound
    of the policy term took effect."""

    loss_N: Tensor
    policy_N: Tensor
    kl_N: Tensor
    entropy_N: Tensor
    ratio_N: Tensor
    k3_N: Tensor
    truncated_N: Tensor


def token_losses(given: TokenInputs, settings: ObjectiveSettings, tokens_per_turn: float) -> TokenLosses:
    """Return losses to be summed and divided by the update's number of tokens; there are `tokens_per_turn` on average.

    Tokens where `keep_N` is false contribute nothing."""
    given = _only_kept(given)
    logprobs_N, turns_N, constant = given.logprobs_N, given.turns_N, settings.normaliser_tokens
    policy_N, changed_N = policy_loss(logprobs_N, given.behaviour_N, _advantage(given, settings), turns_N, settings)
    policy_N = normalised(policy_N, settings.policy_normaliser, turns_N, tokens_per_turn, constant)
    loss_N, kl_N, entropy_N = policy_N, torch.zeros_like(policy_N), torch.zeros_like(policy_N)
    if settings.kl.placement == "loss":
        kl_N = settings.kl.coefficient * estimate(settings.kl.estimator, logprobs_N, given.anchor_N)
        kl_N = normalised(kl_N, settings.kl.normaliser, turns_N, tokens_per_turn, constant)
        loss_N = loss_N + kl_N
    if settings.entropy_coefficient:
        entropy_N = settings.entropy_coefficient * given.entropy_N
        entropy_N = -normalised(entropy_N, settings.entropy_normaliser, turns_N, tokens_per_turn, constant)
        loss_N = loss_N + entropy_N
    loss_N, policy_N, kl_N, entropy_N = (
        torch.where(given.keep_N, term_N, 0.0) for term_N in (loss_N, policy_N, kl_N, entropy_N)
    )
    figures_N = logprobs_N.detach()
    ratio_N = (figures_N - given.behaviour_N).exp()
    terms = (policy_N.detach(), kl_N.detach(), entropy_N.detach())
    k3_N = k3(figures_N, torch.minimum(given.anchor_N, figures_N + _FARTHEST))
    return TokenLosses(loss_N, *terms, ratio_N, k3_N, changed_N & given.keep_N)


def _only_kept(given: TokenInputs) -> TokenInputs:
    """Detach tokens that are not kept, since 0 times an infinite gradient is not a number."""
    logprobs_N, entropy_N = given.logprobs_N, given.entropy_N
    return replace(
        given,
        logprobs_N=torch.where(given.keep_N, logprobs_N, logprobs_N.detach()),
        entropy_N=torch.where(given.keep_N, entropy_N, entropy_N.detach()),
    )


def _advantage(given: TokenInputs, settings: ObjectiveSettings) -> Tensor:
    if settings.kl.placement == "loss" or settings.kl.coefficient == 0:
        return given.advantage_N
    cost_N = k1(given.logprobs_N.detach(), given.anchor_N)
    return given.advantage_N - settings.kl.coefficient * to_go(cost_N, given.turns_N)
