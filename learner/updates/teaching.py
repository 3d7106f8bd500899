"""The part of an update that teaches users' own texts, or takes them back.

It comes after the sampled tokens, because only then is it known which turns train: a text is taught with its turn or
not at all."""

from collections.abc import Sequence

import msgspec
import torch

from core.settings import LearnerSettings
from learner.objective.demonstrations import likelihood_loss, weight_of
from learner.sequences.scored import ScoredTurn, TurnRecord
from learner.sequences.tensors import MicroBatch
from learner.sequences.written import WrittenLesson, lessons_of
from learner.updates.apart import add_gradient
from learner.updates.state import LearnerState, computing_in


def with_texts(
    state: LearnerState,
    batch: Sequence[ScoredTurn],
    records: Sequence[TurnRecord],
    shares: Sequence[float],
    settings: LearnerSettings,
) -> tuple[TurnRecord, ...]:
    """Return the records of an update, each with the weight of its turn's text after it."""
    weight = settings.objective.demonstration_weight
    fits = (state.policy.vocabulary, state.policy.context_length) if any(s.reward.edits for s in batch) else (0, 0)
    weights = (weight_of(scored, weight, share, *fits) for scored, share in zip(batch, shares, strict=True))
    return tuple(
        msgspec.structs.replace(record, taught=0.0 if record.dropped else each)
        for record, each in zip(records, weights, strict=True)
    )


def teach(
    state: LearnerState,
    batch: Sequence[ScoredTurn],
    records: Sequence[TurnRecord],
    settings: LearnerSettings,
    num_tokens: int,
) -> dict[str, float]:
    """Add the gradient of the texts of the turns that train; return sums for the figures, as `add_gradient` does."""
    trained = [(n, record) for n, record in enumerate(records) if record.dropped is None]
    lessons = [lesson for n, record in trained for lesson in lessons_of(n, batch[n], record.taught)]
    if not lessons:
        return {}

    def loss_of(part: MicroBatch, rows: list[int]) -> tuple[torch.Tensor, float]:
        return _loss(state, part, [lessons[row] for row in rows], settings), len(part.targets_N)

    sequences, names = [lesson.sequence for lesson in lessons], ("demonstration_loss", "taught_tokens")
    return add_gradient(state, sequences, loss_of, names, settings, num_tokens)


def _loss(
    state: LearnerState, part: MicroBatch, lessons: Sequence[WrittenLesson], settings: LearnerSettings
) -> torch.Tensor:
    weights = [weight for lesson in lessons for weight in lesson.weights]
    _, logprobs_N, _ = state.policy.evaluate(part, computing_in(settings))
    anchor_N = None
    if min(weights) < 0:
        with torch.no_grad():
            anchor_N = state.anchor.evaluate(part, computing_in(settings))[1]
    return likelihood_loss(logprobs_N, torch.tensor(weights, device=logprobs_N.device), anchor_N).sum()
