"""Training sequences as padded micro-batches.

Legend: B sequences, T positions, N sampled tokens of a micro-batch (the places that are predicted and trained).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from core.events import Completion
from learner.scored import ScoredTurn
from learner.sequences import TrainingSequence


@dataclass(frozen=True)
class MicroBatch:
    """`rows_N`, `places_N` say which hidden state predicts each sampled token; `turns_N` which turn it belongs to."""

    ids_BT: Tensor
    rows_N: Tensor
    places_N: Tensor
    targets_N: Tensor
    behaviour_N: Tensor  # log-probabilities from serving
    temperature_N: Tensor
    turns_N: Tensor  # index into the batch
    indices_N: Tensor  # among the output tokens of its turn
    versions_N: Tensor  # that each token was sampled from; 0: not recorded


def micro_batches(
    sequences: Sequence[TrainingSequence], batch: Sequence[ScoredTurn], max_tokens: int, device: str
) -> list[MicroBatch]:
    """By length, so that little is padded; each within `max_tokens` padded tokens, or a single longer sequence."""
    order = sorted(sequences, key=lambda sequence: len(sequence.token_ids))
    groups: list[list[TrainingSequence]] = []
    for sequence in order:
        if not groups or (len(groups[-1]) + 1) * len(sequence.token_ids) > max_tokens:
            groups.append([])
        groups[-1].append(sequence)
    return [_to_tensors(group, batch, device) for group in groups]


def _to_tensors(group: Sequence[TrainingSequence], batch: Sequence[ScoredTurn], device: str) -> MicroBatch:
    longest = max(len(sequence.token_ids) for sequence in group)
    ids_BT = torch.zeros(len(group), longest, dtype=torch.long)
    rows, places, behaviour, temperature, turns, indices, versions = [], [], [], [], [], [], []
    for row, sequence in enumerate(group):
        ids_BT[row, : len(sequence.token_ids)] = torch.tensor(sequence.token_ids)
        for span in sequence.spans:
            turn = batch[span.turn].turn
            sampled = sampled_places(turn)
            rows += [row] * len(sampled)
            places += [span.start - 1 + index for index in sampled]
            behaviour += [turn.logprobs[index] for index in sampled]
            temperature += [turn.logprob_space.temperature] * len(sampled)
            turns += [span.turn] * len(sampled)
            indices += sampled
            spoke = _versions(turn)
            versions += [spoke[index] for index in sampled]
    rows_N, places_N = torch.tensor(rows), torch.tensor(places)
    return MicroBatch(
        ids_BT=ids_BT.to(device),
        rows_N=rows_N.to(device),
        places_N=places_N.to(device),
        targets_N=ids_BT[rows_N, places_N + 1].to(device),
        behaviour_N=torch.tensor(behaviour, dtype=torch.float32, device=device),
        temperature_N=torch.tensor(temperature, dtype=torch.float32, device=device),
        turns_N=torch.tensor(turns, device=device),
        indices_N=torch.tensor(indices, device=device),
        versions_N=torch.tensor(versions, device=device),
    )


def sampled_places(turn: Completion) -> list[int]:
    """The output tokens that the model chose: forced ones were put into its mouth."""
    forced = {
        index for segment in turn.segments if segment.kind == "forced" for index in range(segment.start, segment.end)
    }
    return [index for index in range(len(turn.token_ids)) if index not in forced]


def _versions(turn: Completion) -> list[int]:
    """Of each output token."""
    versions = [0] * len(turn.token_ids)
    for span in turn.policy_versions:
        versions[span.start : span.end] = [int(span.version)] * (span.end - span.start)
    return versions
