"""Losses per sampled token: the policy, KL and entropy terms, one file each, summed in `tokens`."""

from learner.objective.losses.tokens import TokenInputs, TokenLosses, token_losses

__all__ = ["TokenInputs", "TokenLosses", "token_losses"]
