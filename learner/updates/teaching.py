"""The part of an update in which users' own texts are taught, or taken back, beside what was sampled.

It has micro-batches of its own, after all others: which turns train is known only then, and a text is taught with its
turn or not at all."""

from collections.abc import Sequence

import msgspec
import torch

from core.settings import LearnerSettings
from learner.objective.demonstrations import likelihood_loss, weight_of
from learner.sequences.scored import ScoredTurn, TurnRecord
from learner.sequences.tensors import MicroBatch, apart_batches
from learner.sequences.written import WrittenLesson, lessons_of
from learner.updates.state import LearnerState, computing_in


def with_texts(
    state: LearnerState,
    batch: Sequence[ScoredTurn],
    records: Sequence[TurnRecord],
    shares: Sequence[float],
    settings: LearnerSettings,
) -> tuple[TurnRecord, ...]:
    """Return the records of an update, with the weight with which each turn's text stands after it."""
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
    """Add the gradient of the texts of what trains; return sums for the figures, of all processes.

    `num_tokens`: the update's sampled tokens, by which it is divided as all other terms are."""
    trained = [(n, record) for n, record in enumerate(records) if record.dropped is None]
    lessons = [lesson for n, record in trained for lesson in lessons_of(n, batch[n], record.taught)]
    if not lessons:
        return {}
    compute = settings.compute
    sequences = [lesson.sequence for lesson in lessons]
    parts = apart_batches(sequences, compute.micro_batch_tokens, settings.device, packed=compute.packed)
    sums = {"demonstration_loss": 0.0, "taught_tokens": 0.0, "positions": 0.0}
    for (part, rows), counts in state.ranks.share(parts):
        loss = _loss(state, part, [lessons[row] for row in rows], settings)
        (loss / num_tokens * (state.ranks.count if counts else 0)).backward()
        if counts:
            sums["demonstration_loss"] += float(loss.detach())
            sums["taught_tokens"] += len(part.targets_N)
            sums["positions"] += part.positions
    return state.ranks.total(sums)


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
