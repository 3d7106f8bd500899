"""Merging the turns of a session that continue each other, token for token, into one training sequence.

The prompt of turn k+1 begins with prompt and answer of turn k. Merged, the shared tokens are computed once, and the
gradient is the same: attention is causal, so each sampled token sees exactly its own prefix."""

from collections.abc import Sequence
from dataclasses import dataclass

from learner.sequences.scored import ScoredTurn


@dataclass(frozen=True)
class TurnSpan:
    """The place of a turn: turn `turn` (index into the batch) was sampled at [start, end) of the sequence."""

    turn: int
    start: int
    end: int


@dataclass(frozen=True)
class TrainingSequence:
    token_ids: tuple[int, ...]
    spans: tuple[TurnSpan, ...]


def merge(batch: Sequence[ScoredTurn]) -> list[TrainingSequence]:
    """Merge a batch into sequences, in its order; every turn is in exactly one of them."""
    by_session: dict[str, list[int]] = {}
    for index, scored in enumerate(batch):
        by_session.setdefault(scored.turn.session_id, []).append(index)
    return [sequence for indices in by_session.values() for sequence in _merge_session(batch, indices)]


def without_common_prompt(sequences: Sequence[TrainingSequence]) -> tuple[tuple[int, ...], list[TrainingSequence]]:
    """Return the tokens with which all sequences begin, and what follows them in each.

    What predicts a sampled token stays in its sequence, so these are tokens of prompts alone."""
    room = min(sequence.spans[0].start - 1 for sequence in sequences)
    # What the first and the last in order begin with, all that are between them begin with, too.
    first, last = (choose(sequence.token_ids[:room] for sequence in sequences) for choose in (min, max))
    length = next((place for place in range(room) if first[place] != last[place]), room)
    after = [
        TrainingSequence(
            sequence.token_ids[length:],
            tuple(TurnSpan(span.turn, span.start - length, span.end - length) for span in sequence.spans),
        )
        for sequence in sequences
    ]
    return first[:length], after


def _merge_session(batch: Sequence[ScoredTurn], indices: list[int]) -> list[TrainingSequence]:
    """Merge greedily, shortest first: a branch that does not continue an open sequence starts a new one."""
    open_sequences: list[TrainingSequence] = []
    for index in sorted(indices, key=lambda i: (len(batch[i].turn.prompt_token_ids), i)):
        turn = batch[index].turn
        prompt, whole = turn.prompt_token_ids, turn.prompt_token_ids + turn.token_ids
        span = TurnSpan(index, len(prompt), len(whole))
        place = next((p for p, s in enumerate(open_sequences) if _continues(prompt, s.token_ids)), None)
        if place is None:
            open_sequences.append(TrainingSequence(whole, (span,)))
        else:
            open_sequences[place] = TrainingSequence(whole, (*open_sequences[place].spans, span))
    return open_sequences


def _continues(prompt: tuple[int, ...], sequence: tuple[int, ...]) -> bool:
    return len(prompt) >= len(sequence) and prompt[: len(sequence)] == sequence
