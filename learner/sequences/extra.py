"""Sequences beside the batch: tokens that a loss is taken of though no model sampled them where they stand.

They have no behaviour log-probabilities. Theirs are NaN, so that an importance ratio, a divergence or a KL estimate
with such a token is no number, and the update that takes it is refused; nor do they count in any figure of the batch.

Legend: N predicted tokens of a micro-batch."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from learner.sequences.packing import pack
from learner.sequences.tensors import MicroBatch, alike, laid_out


@dataclass(frozen=True)
class ExtraSequence:
    """Tokens, of which those at `places`, none of them the first, are predicted from all that stands before them.

    `turn`: index into the batch; the prediction is at that turn's `temperature`, over all ids."""

    token_ids: tuple[int, ...]
    places: tuple[int, ...]
    turn: int
    temperature: float


@dataclass(frozen=True)
class ExtraPart:
    """A micro-batch of extra sequences. `sequences_N`: of which sequence each token is, by its index among all."""

    tokens: MicroBatch
    sequences_N: Tensor


@dataclass(frozen=True)
class ExtraLoss:
    """A loss over extra sequences. `of` takes a part and its logprobs_N under the policy, and returns a sum.

    That is divided by the update's number of sampled tokens: a token whose loss is its negative log-likelihood counts
    as much as a sampled one with an advantage of 1. `name` is that of its figure."""

    name: str
    parts: Sequence[ExtraPart]
    of: Callable[[ExtraPart, Tensor], Tensor]


def extra_parts(
    sequences: Sequence[ExtraSequence], max_tokens: int, device: str, *, packed: bool = False
) -> list[ExtraPart]:
    """Return micro-batches as `learner.sequences.tensors.micro_batches` makes them.

    The tokens' `indices_N` count from 0 among those of their sequence that are predicted."""
    lengths = [len(sequence.token_ids) for sequence in sequences]
    order = sorted(range(len(sequences)), key=lengths.__getitem__, reverse=packed)
    rows = pack(lengths, order, max_tokens) if packed else alike(lengths, order, max_tokens)
    return [_to_tensors(sequences, row, device, packed=packed) for row in rows]


def _to_tensors(sequences: Sequence[ExtraSequence], chosen: Sequence[int], device: str, *, packed: bool) -> ExtraPart:
    ids_BT, positions_BT, starts = laid_out([sequences[each].token_ids for each in chosen], packed=packed)
    rows, places, temperature, turns, indices, owners = [], [], [], [], [], []
    for each, (row, start) in zip(chosen, starts, strict=True):
        sequence, count = sequences[each], len(sequences[each].places)
        rows += [row] * count
        places += [start + place - 1 for place in sequence.places]
        temperature += [sequence.temperature] * count
        turns += [sequence.turn] * count
        indices += range(count)
        owners += [each] * count
    rows_N, places_N = torch.tensor(rows), torch.tensor(places)
    tokens = MicroBatch(
        ids_BT=ids_BT.to(device),
        positions_BT=None if positions_BT is None else positions_BT.to(device),
        rows_N=rows_N.to(device),
        places_N=places_N.to(device),
        targets_N=ids_BT[rows_N, places_N + 1].to(device),
        behaviour_N=torch.full((len(rows),), torch.nan, device=device),
        temperature_N=torch.tensor(temperature, dtype=torch.float32, device=device),
        turns_N=torch.tensor(turns, device=device),
        indices_N=torch.tensor(indices, device=device),
        versions_N=torch.zeros(len(rows), dtype=torch.long, device=device),
    )
    return ExtraPart(tokens, torch.tensor(owners, device=device))
