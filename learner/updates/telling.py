"""Telling: the teacher reads a batch's answers with what users said in the prompt, before the update.

Each answer is read with the words about it, and a few others of the same workload are read with them, too: by these it
is found out whether heeding the words is rewarded."""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

from core.settings import LearnerSettings
from learner.objective.testimony import witnesses_of
from learner.objective.words import Advice, Told, hinted_indices
from learner.sequences.hinted import Heard, hear, with_words
from learner.sequences.joining import TrainingSequence, TurnSpan
from learner.sequences.scored import ScoredTurn
from learner.sequences.tensors import MicroBatch, micro_batches, sampled_places
from learner.updates.precision import computing_in
from learner.updates.state import LearnerState
from learner.updates.teacher import Teacher

Batch = Sequence[ScoredTurn]


def tell(state: LearnerState, batch: Batch, shares: Sequence[float], settings: LearnerSettings) -> Told | None:
    """Return what users' words say of the batch; None where words do not train, or nobody said any.

    `shares`: the influence of each turn. Words that begin to train get a teacher with the policy's weights; those that
    no longer train lose it."""
    words = settings.words
    if not words.weight:
        state.teacher = None
        return None
    _have_teacher(state, settings)
    heard = hear(batch, words, state.policy.prompts, state.policy.context_length)
    if not heard.turns and not heard.unused:
        return None
    proven = frozenset(
        turn
        for turn in heard.turns
        if not words.proof or state.testimony.errors_of(batch[turn].turn.namespace) > words.proof
    )
    with _teaching(state), torch.no_grad():
        advice = _advice(state, batch, heard, settings)
        readings = _readings(state, batch, heard, settings) if words.proof else {}
    return Told(heard, advice, shares, proven, words, readings)


def follow(state: LearnerState, settings: LearnerSettings) -> None:
    """Let the teacher, if there is one, follow the policy by a step."""
    if state.teacher is not None:
        state.teacher.follow(state.policy.parameters(), settings.words.teacher_decay)


def _have_teacher(state: LearnerState, settings: LearnerSettings) -> None:
    if settings.words.teacher_decay == 0:
        state.teacher = None
    elif state.teacher is None:
        state.teacher = Teacher.of(state.policy.parameters())


def _teaching(state: LearnerState) -> AbstractContextManager[None]:
    return nullcontext() if state.teacher is None else state.teacher.instead(state.policy.parameters())


def _advice(state: LearnerState, batch: Batch, heard: Heard, settings: LearnerSettings) -> dict[int, Advice]:
    told = list(heard.turns)
    prompts = [heard.turns[turn].prompt_token_ids for turn in told]
    advice = {}
    for part in _parts(state, [batch[turn] for turn in told], prompts, settings):
        found = state.policy.candidates(part, settings.words.candidates, computing_in(settings))
        for place in sorted(set(part.turns_N.tolist())):
            turn = told[place]
            indices = hinted_indices(heard.turns[turn], sampled_places(batch[turn].turn))
            wanted = torch.tensor(indices, device=part.indices_N.device)
            tokens_H = ((part.turns_N == place) & torch.isin(part.indices_N, wanted)).nonzero()[:, 0]
            if len(tokens_H):
                sampled_N, ids_NK, logprobs_NK = found
                advice[turn] = Advice(indices, ids_NK[tokens_H], logprobs_NK[tokens_H], sampled_N[tokens_H])
    return advice


def _readings(
    state: LearnerState, batch: Batch, heard: Heard, settings: LearnerSettings
) -> dict[int, dict[int, Tensor]]:
    """Return the log-probabilities of turns' tokens with the words of others: by the turn, then by the other."""
    pairs, prompts = [], []
    for told, hinted in heard.turns.items():
        for turn in witnesses_of(told, batch, settings.words.witnesses):
            prompt = with_words(batch[turn].turn, hinted.said, state.policy.prompts, state.policy.context_length)
            if prompt is not None:
                pairs.append((told, turn))
                prompts.append(prompt)
    readings: dict[int, dict[int, Tensor]] = {}
    for part in _parts(state, [batch[turn] for _, turn in pairs], prompts, settings):
        _, logprobs_N, _ = state.policy.evaluate(part, computing_in(settings))
        for place in sorted(set(part.turns_N.tolist())):
            told, turn = pairs[place]
            readings.setdefault(turn, {})[told] = logprobs_N[part.turns_N == place]
    return readings


def _parts(
    state: LearnerState, read: Batch, prompts: Sequence[tuple[int, ...]], settings: LearnerSettings
) -> Iterator[MicroBatch]:
    """Yield micro-batches of turns with other prompts than they had; `turns_N` counts among those that are read."""
    sequences = []
    for place, (scored, prompt) in enumerate(zip(read, prompts, strict=True)):
        whole = (*prompt, *scored.turn.token_ids)
        sequences.append(TrainingSequence(whole, (TurnSpan(place, len(prompt), len(whole)),)))
    most, packed = settings.compute.micro_batch_tokens, settings.compute.packed
    yield from micro_batches(sequences, read, most, settings.device, packed=packed, masks=state.policy.masks)
