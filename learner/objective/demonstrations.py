"""The likelihood of what a user wrote in the place of an answer's own tokens.

    loss = -w * log pi       of each token that an edit put in, and of the one behind an edit, whose context is new

w is `learner.objective.demonstration_weight`: such a token moves the policy as far as a sampled one does by an
advantage of w. It is less for a user who counts for less, and where a text has more such tokens than its answer has
sampled ones, so that no text moves it further than its answer could.

A text that no longer stands, since it was amended or withdrawn, is taken back as a reward is: with the weight that it
was taught with. But a token that is no likelier than the anchor has it has nothing to lose:

    loss = 0                 where w < 0 and log pi <= log anchor

No policy sampled these tokens, so there is nothing to compare the policy's probability with: they are in no importance
ratio, no KL term and no effective sample size.

Legend: N tokens of a micro-batch of texts."""

import torch
from torch import Tensor

from learner.sequences.scored import ScoredTurn
from learner.sequences.tensors import sampled_places
from learner.sequences.written import users_text


def weight_of(scored: ScoredTurn, weight: float, share: float, vocabulary: int, context_length: int) -> float:
    """Return the weight with which the turn's text is to stand; 0 where there is none, or it does not fit the model.

    `share`: the influence of the turn's user. A text that was taught before keeps its weight."""
    turn, edits, before = scored.turn, scored.reward.edits, scored.applied
    if not edits:
        return 0.0
    if before is not None and before.edits == edits:
        return before.taught
    text = users_text(turn, edits)
    if text is None or not text.places or max(text.token_ids, default=0) >= vocabulary:
        return 0.0
    if len(turn.prompt_token_ids) + len(text.token_ids) > context_length:
        return 0.0
    return weight * min(1.0, share) * min(1.0, len(sampled_places(turn)) / len(text.places))


def likelihood_loss(logprobs_N: Tensor, weight_N: Tensor, anchor_N: Tensor | None = None) -> Tensor:
    """Return the loss of each token. Without `anchor_N`, no weight is below 0."""
    loss_N = -weight_N * logprobs_N
    if anchor_N is None:
        return loss_N
    return torch.where((weight_N > 0) | (logprobs_N.detach() > anchor_N), loss_N, 0.0)
