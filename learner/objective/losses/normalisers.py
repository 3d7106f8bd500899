"""Normalisers: what the sum of a term's tokens is divided by.

    token     all sampled tokens of the update: each counts the same, long turns more (DAPO, arXiv:2503.14476)
    sequence  the tokens of the turn, then the turns: each turn counts the same (GRPO, arXiv:2402.03300)
    constant  the turns times a constant: each token counts the same whatever else is in the update (Dr. GRPO,
              arXiv:2503.20783)

Tokens and turns that train nothing count too, so leaving some out does not change the others' weight.

Legend: N sampled tokens of a micro-batch."""

from typing import Literal

from torch import Tensor

from learner.objective.losses.corrections import turn_lengths

Normaliser = Literal["token", "sequence", "constant"]


def normalised(
    term_N: Tensor, normaliser: Normaliser, turns_N: Tensor, tokens_per_turn: float, constant: int
) -> Tensor:
    """Return the term such that its sum, divided by the update's number of tokens, is normalised.

    `tokens_per_turn`: the mean over the update."""
    match normaliser:
        case "token":
            return term_N
        case "sequence":
            return term_N * (tokens_per_turn / turn_lengths(turns_N))
        case "constant":
            return term_N * (tokens_per_turn / constant)
