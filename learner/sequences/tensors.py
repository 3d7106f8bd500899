"""Training sequences as micro-batches: padded, or packed into one row in which they do not see each other.

Legend: B sequences, T positions, N sampled tokens of a micro-batch (the places that are predicted and trained)."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

import torch
from onward_kernels.sampling_mask import SamplingMask
from torch import Tensor

from core.events import Completion
from core.grammars.masks import Words
from learner.sequences.joining import TrainingSequence, without_common_prompt
from learner.sequences.masks import MasksOfTurns, has_masks, sampling_mask
from learner.sequences.packing import pack
from learner.sequences.scored import ScoredTurn


@dataclass(frozen=True)
class MicroBatch:
    """The tensors of some sequences; with `prompt_P`, of what follows these tokens in each of them.

    `rows_N` and `places_N` say which hidden state predicts each sampled token, `turns_N` which turn the token belongs
    to."""

    ids_BT: Tensor
    positions_BT: Tensor | None  # of a packed row: from 0 in each sequence, by which models tell them apart
    rows_N: Tensor
    places_N: Tensor
    targets_N: Tensor
    behaviour_N: Tensor  # log-probabilities from serving
    temperature_N: Tensor
    turns_N: Tensor  # index into the batch
    indices_N: Tensor  # among the output tokens of its turn
    versions_N: Tensor  # numbers of the versions that sampled each token, of the batch's policy; 0: not recorded
    prompt_P: Tensor | None = None
    mask: SamplingMask | None = None
    """Which ids each token could have been; None: all."""

    @property
    def positions(self) -> int:
        """The number of positions that are computed."""
        return self.ids_BT.numel() + (0 if self.prompt_P is None else len(self.prompt_P))


def micro_batches(
    sequences: Sequence[TrainingSequence],
    batch: Sequence[ScoredTurn],
    max_tokens: int,
    device: str,
    *,
    packed: bool = False,
    shared: bool = False,
    masks: MasksOfTurns | None = None,
) -> list[MicroBatch]:
    """Return micro-batches of at most `max_tokens` tokens each, or of a single longer sequence.

    Padded ones have sequences of similar length, so that little is padded; packed ones have no padding at all.
    `shared`: the prompt that all sequences have in common stands in each micro-batch once. `masks` makes those of turns
    that have any. Raises NoMasks where they cannot be made again, ValueError for such a turn without it."""
    prompt: tuple[int, ...] = ()
    if shared and len(sequences) > 1:
        prompt, sequences = without_common_prompt(sequences)
    rows = _rows([len(sequence.token_ids) for sequence in sequences], max_tokens, packed=packed)
    parts = [_to_tensors([sequences[index] for index in row], batch, device, masks, packed=packed) for row in rows]
    return [replace(part, prompt_P=torch.tensor(prompt, device=device)) for part in parts] if prompt else parts


@dataclass(frozen=True)
class Apart:
    """A sequence whose tokens at `places` are scored. No policy sampled it as it is."""

    turn: int  # index into the batch
    token_ids: tuple[int, ...]
    places: tuple[int, ...]
    temperature: float


def apart_batches(
    sequences: Sequence[Apart], max_tokens: int, device: str, *, packed: bool = False
) -> list[tuple[MicroBatch, list[int]]]:
    """Return micro-batches of such sequences, each with the indices of its sequences, in the order of its tokens.

    Behaviour log-probabilities are NaN, so that any ratio to them is NaN, too; `indices_N` are places in the
    sequence."""
    rows = _rows([len(sequence.token_ids) for sequence in sequences], max_tokens, packed=packed)
    return [(_apart([sequences[index] for index in row], device, packed=packed), row) for row in rows]


def _apart(group: Sequence[Apart], device: str, *, packed: bool) -> MicroBatch:
    ids_BT, positions_BT, starts = _laid_out([sequence.token_ids for sequence in group], packed=packed)
    found = [
        (row, start + place - 1, sequence.temperature, sequence.turn, place)
        for sequence, (row, start) in zip(group, starts, strict=True)
        for place in sequence.places
    ]
    rows, places, temperature, turns, indices = zip(*found, strict=True)
    rows_N, places_N = torch.tensor(rows), torch.tensor(places)
    return MicroBatch(
        ids_BT=ids_BT.to(device),
        positions_BT=None if positions_BT is None else positions_BT.to(device),
        rows_N=rows_N.to(device),
        places_N=places_N.to(device),
        targets_N=ids_BT[rows_N, places_N + 1].to(device),
        behaviour_N=torch.full((len(found),), math.nan, device=device),
        temperature_N=torch.tensor(temperature, dtype=torch.float32, device=device),
        turns_N=torch.tensor(turns, device=device),
        indices_N=torch.tensor(indices, device=device),
        versions_N=torch.zeros(len(found), dtype=torch.long, device=device),
    )


def _rows(lengths: Sequence[int], max_tokens: int, *, packed: bool) -> list[list[int]]:
    """Return the sequences of each micro-batch."""
    order = sorted(range(len(lengths)), key=lengths.__getitem__, reverse=packed)
    return pack(lengths, order, max_tokens) if packed else _alike(lengths, order, max_tokens)


def _alike(lengths: Sequence[int], order: Sequence[int], max_tokens: int) -> list[list[int]]:
    groups: list[list[int]] = []
    for index in order:
        if not groups or (len(groups[-1]) + 1) * lengths[index] > max_tokens:
            groups.append([])
        groups[-1].append(index)
    return groups


def _to_tensors(
    group: Sequence[TrainingSequence],
    batch: Sequence[ScoredTurn],
    device: str,
    masks: MasksOfTurns | None,
    *,
    packed: bool,
) -> MicroBatch:
    ids_BT, positions_BT, starts = _laid_out([sequence.token_ids for sequence in group], packed=packed)
    rows, places, behaviour, temperature, turns, indices, versions, allowed = [], [], [], [], [], [], [], []
    for sequence, (row, start) in zip(group, starts, strict=True):
        for span in sequence.spans:
            turn = batch[span.turn].turn
            sampled = sampled_places(turn)
            rows += [row] * len(sampled)
            places += [start + span.start - 1 + index for index in sampled]
            behaviour += [turn.logprobs[index] for index in sampled]
            temperature += [turn.logprob_space.temperature] * len(sampled)
            turns += [span.turn] * len(sampled)
            indices += sampled
            spoke = _versions(turn)
            versions += [spoke[index] for index in sampled]
            made = _masks(turn, masks)
            allowed += [None if made is None else made[index] for index in sampled]
    rows_N, places_N = torch.tensor(rows), torch.tensor(places)
    return MicroBatch(
        ids_BT=ids_BT.to(device),
        positions_BT=None if positions_BT is None else positions_BT.to(device),
        rows_N=rows_N.to(device),
        places_N=places_N.to(device),
        targets_N=ids_BT[rows_N, places_N + 1].to(device),
        behaviour_N=torch.tensor(behaviour, dtype=torch.float32, device=device),
        temperature_N=torch.tensor(temperature, dtype=torch.float32, device=device),
        turns_N=torch.tensor(turns, device=device),
        indices_N=torch.tensor(indices, device=device),
        versions_N=torch.tensor(versions, device=device),
        mask=sampling_mask(allowed, device),
    )


def _masks(turn: Completion, masks: MasksOfTurns | None) -> Sequence[Words] | None:
    if not has_masks(turn):
        return None
    if masks is None:
        raise ValueError(f"{turn.inference_id} was sampled under masks, and nothing is there to make them again")
    return masks.of(turn)


def _laid_out(
    sequences: Sequence[tuple[int, ...]], *, packed: bool
) -> tuple[Tensor, Tensor | None, list[tuple[int, int]]]:
    """Return (ids_BT, positions_BT, the row and place where each sequence begins)."""
    lengths = [len(ids) for ids in sequences]
    if packed:
        ids_BT = torch.tensor([[token for ids in sequences for token in ids]])
        positions_BT = torch.cat([torch.arange(length) for length in lengths])[None]
        return (
            ids_BT,
            positions_BT,
            [(0, end - length) for end, length in zip(accumulate(lengths), lengths, strict=True)],
        )
    ids_BT = torch.zeros(len(sequences), max(lengths), dtype=torch.long)
    for row, ids in enumerate(sequences):
        ids_BT[row, : len(ids)] = torch.tensor(ids)
    return ids_BT, None, [(row, 0) for row in range(len(sequences))]


def sampled_places(turn: Completion) -> list[int]:
    """Return the indices of the output tokens that the model sampled, without those that were forced."""
    forced = {
        index for segment in turn.segments if segment.kind == "forced" for index in range(segment.start, segment.end)
    }
    return [index for index in range(len(turn.token_ids)) if index not in forced]


def _versions(turn: Completion) -> list[int]:
    """Return the version that sampled each output token."""
    versions = [0] * len(turn.token_ids)
    for span in turn.policy_versions:
        versions[span.start : span.end] = [span.version.version] * (span.end - span.start)
    return versions
