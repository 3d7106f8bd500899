"""Packing examples into rows of fixed length: several share a row and do not see each other.

Legend: R rows, T tokens of a row."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Example:
    """The tokens of an example; `weights[i]` is the loss weight of predicting `token_ids[i]`.

    `source` is the number of the corpus that it was read from."""

    token_ids: Sequence[int]
    weights: Sequence[float]
    source: int = 0


@dataclass(frozen=True)
class PackedRows:
    ids_RT: Tensor
    positions_RT: Tensor  # from 0 in each example
    mask_R1TT: Tensor  # bool: may attend
    weights_RT: Tensor  # of predicting the token at this place; 0 at an example's first and in padding
    sources_RT: Tensor  # of the example; -1 in padding


def pack(lengths: Sequence[int], order: Sequence[int], row_tokens: int) -> list[list[int]]:
    """Return the examples of each row: first fit over the last few open rows, in the given order, splitting none."""
    rows: list[list[int]] = []
    free: list[int] = []
    for index in order:
        open_rows = range(max(0, len(rows) - 16), len(rows))
        place = next((row for row in open_rows if free[row] >= lengths[index]), None)
        if place is None:
            rows.append([])
            free.append(row_tokens)
            place = len(rows) - 1
        rows[place].append(index)
        free[place] -= lengths[index]
    return rows


def to_tensors(rows: Sequence[Sequence[Example]], row_tokens: int, pad_id: int) -> PackedRows:
    shape = (len(rows), row_tokens)
    ids_RT = torch.full(shape, pad_id)
    positions_RT = torch.zeros(shape, dtype=torch.long)
    segments_RT = torch.full(shape, -1)
    weights_RT = torch.zeros(shape)
    sources_RT = torch.full(shape, -1)
    for row, examples in enumerate(rows):
        start = 0
        for number, example in enumerate(examples):
            end = start + len(example.token_ids)
            ids_RT[row, start:end] = torch.tensor(example.token_ids)
            positions_RT[row, start:end] = torch.arange(end - start)
            segments_RT[row, start:end] = number
            weights_RT[row, start + 1 : end] = torch.tensor(example.weights[1:])
            sources_RT[row, start:end] = example.source
            start = end
    same_RTT = segments_RT[:, :, None] == segments_RT[:, None, :]
    causal_TT = torch.ones(row_tokens, row_tokens, dtype=torch.bool).tril()
    return PackedRows(ids_RT, positions_RT, (same_RTT & causal_TT)[:, None], weights_RT, sources_RT)
