"""Losses over sequences beside the batch, whose gradients are added to those of an update."""

from collections.abc import Sequence

from core.settings import LearnerSettings
from learner.sequences.extra import ExtraLoss
from learner.updates.figures import UpdateFigures
from learner.updates.precision import computing_in
from learner.updates.state import LearnerState


def add_gradients(
    state: LearnerState, losses: Sequence[ExtraLoss], settings: LearnerSettings, num_tokens: int, tally: UpdateFigures
) -> None:
    """Add the losses' gradients to the policy's; several processes share the parts, and average their gradients."""
    for loss in losses:
        for part, counts in state.ranks.share(loss.parts):
            _, logprobs_N, _ = state.policy.evaluate(part.tokens, computing_in(settings))
            total = loss.of(part, logprobs_N)
            (total * (state.ranks.count / num_tokens) if counts else total * 0).backward()  # type: ignore[no-untyped-call]
            if counts:
                tally.add(**{loss.name: total.detach()}, positions=part.tokens.positions)
