"""Losses per sampled token: terms of policy, KL and entropy, each a file, put together in `tokens`."""

from learner.objective.losses.tokens import TokenInputs, TokenLosses, token_losses

__all__ = ["TokenInputs", "TokenLosses", "token_losses"]
