"""Attention over slots, for rows of any lengths in one forward pass, packed without padding.

Every request's keys and values lie in a slot of static tensors. Shapes: S slots, T tokens of a slot, N packed tokens of
a step, B decode rows (one token each), P tokens of one prefill row, C keys a row sees, H query heads, K key-value
heads, G = H / K, D head dimension.

Rows that decode come first and share one call; each prefill row attends by itself, straight from its slot. Grouped
queries (GQA, arXiv 2305.13245) are never expanded: decode treats a group's G queries as G positions of one key head."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from mmap import mmap
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from core.errors import ConfigError

NAME = "onward_slots"
_ROUND_KEYS = 16  # the keys of a decode step are rounded up, so that shapes repeat
_ROWS_PER_RUN = 8  # neighbouring slots are read in place, by one call a run; where runs are short, copying is cheaper


@dataclass(frozen=True)
class Row:
    """Tokens [start, end) of the sequence in `slot`, to be computed in this step."""

    slot: int
    start: int
    end: int


@dataclass(frozen=True)
class _Prefill:
    slot: int
    first: int  # place of its tokens among the packed ones
    start: int
    end: int
    mask_PC: Tensor | None  # None: nothing before it, plainly causal


class GaveWay(Exception):
    """A step ended between two layers, since its rows give way to others. What it has written is written again."""


class AttentionPlan:
    """The plan of one step: the place of each token, and what each row sees. Decode rows come first.

    `must_give_way` is asked before each layer."""

    def __init__(
        self,
        rows: Sequence[Row],
        slot_tokens: int,
        device: torch.device,
        dtype: torch.dtype,
        must_give_way: Callable[[], bool] | None = None,
    ) -> None:
        self.must_give_way = must_give_way
        decoding = [row for row in rows if row.end - row.start == 1]
        assert list(rows[: len(decoding)]) == decoding, "decode rows come first"
        places = [row.slot * slot_tokens + at for row in rows for at in range(row.start, row.end)]
        ends, total = [], 0
        for row in rows:
            total += row.end - row.start
            ends.append(total - 1)
        self.places_N = torch.tensor(places, device=device)
        self.positions_1N = (self.places_N % slot_tokens)[None]
        self.last_R = torch.tensor(ends, device=device)
        self.num_decoding = len(decoding)
        self.prefills = [
            _Prefill(row.slot, end + 1 - (row.end - row.start), row.start, row.end, _causal(row, device, dtype))
            for row, end in zip(rows[len(decoding) :], ends[len(decoding) :], strict=True)
        ]
        if decoding:
            self._plan_decoding(decoding, slot_tokens, device, dtype)

    def _plan_decoding(self, rows: Sequence[Row], slot_tokens: int, device: torch.device, dtype: torch.dtype) -> None:
        self.keys = min(-(-max(row.end for row in rows) // _ROUND_KEYS) * _ROUND_KEYS, slot_tokens)
        ends_B1 = torch.tensor([row.end for row in rows], device=device)[:, None]
        self.mask_B11C = _additive(torch.arange(self.keys, device=device) >= ends_B1, dtype)[:, None, None]
        slots = [row.slot for row in rows]
        starts = [at for at, slot in enumerate(slots) if at == 0 or slot != slots[at - 1] + 1]
        self.runs = [(first, last, slots[first]) for first, last in pairwise([*starts, len(rows)])]
        is_scattered = len(starts) > max(1, len(rows) // _ROWS_PER_RUN)
        self.gather_B = torch.tensor(slots, device=device) if is_scattered else None


def _additive(hidden: Tensor, dtype: torch.dtype) -> Tensor:
    return torch.zeros(hidden.shape, dtype=dtype, device=hidden.device).masked_fill_(hidden, float("-inf"))


def _causal(row: Row, device: torch.device, dtype: torch.dtype) -> Tensor | None:
    if row.start == 0:
        return None
    hidden_PC = torch.arange(row.end, device=device) > torch.arange(row.start, row.end, device=device)[:, None]
    return _additive(hidden_PC, dtype)


class SlotCache:
    """Keys and values of all slots."""

    def __init__(self, shapes_KD: Sequence[tuple[int, int]], slots: int, slot_tokens: int, like: Tensor) -> None:
        """`shapes_KD`: key-value heads and head dimension of each layer; `like` gives device and dtype."""
        shapes = [(slots, slot_tokens, heads, size) for heads, size in shapes_KD]
        self.keys_STKD = [_zeros(shape, like) for shape in shapes]
        self.values_STKD = [_zeros(shape, like) for shape in shapes]
        self.slot_tokens = slot_tokens

    def write(self, layer: int, key_NKD: Tensor, value_NKD: Tensor, plan: AttentionPlan) -> tuple[Tensor, Tensor]:
        """Put them where the plan says; returns the layer's whole tensors. Raises GaveWay."""
        if plan.must_give_way is not None and plan.must_give_way():
            raise GaveWay
        keys_STKD, values_STKD = self.keys_STKD[layer], self.values_STKD[layer]
        keys_STKD.flatten(0, 1).index_copy_(0, plan.places_N, key_NKD)
        values_STKD.flatten(0, 1).index_copy_(0, plan.places_N, value_NKD)
        return keys_STKD, values_STKD

    def copy(self, source: int, slot: int, tokens: int) -> None:
        """Copy a slot's first `tokens` into another slot."""
        for tensor_STKD in (*self.keys_STKD, *self.values_STKD):
            tensor_STKD[slot, :tokens] = tensor_STKD[source, :tokens]

    def clear(self) -> None:
        """Zero everything: a slot's unused tail must be finite, since it is masked by adding."""
        for tensor in (*self.keys_STKD, *self.values_STKD):
            tensor.zero_()

    def clear_slot(self, slot: int) -> None:
        """Clear one slot."""
        for tensor in (*self.keys_STKD, *self.values_STKD):
            tensor[slot].zero_()

    def is_finite(self, slot: int, tokens: int) -> bool:
        """Return whether the first `tokens` of a slot are finite."""
        tensors = (*self.keys_STKD, *self.values_STKD)
        return all(bool(torch.isfinite(tensor[slot, :tokens]).all()) for tensor in tensors)


def _zeros(shape: tuple[int, ...], like: Tensor) -> Tensor:
    """Return zeros, which on a processor take memory only from when they are written: few slots are ever full."""
    if like.device.type != "cpu":
        return torch.zeros(shape, dtype=like.dtype, device=like.device)
    size_bytes = math.prod(shape) * like.element_size()
    return torch.frombuffer(mmap(-1, size_bytes), dtype=like.dtype).view(shape)


def slot_attention(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float | None = None,
    plan: AttentionPlan,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **_kwargs: Any,
) -> tuple[Tensor, None]:
    """Attend; this is an attention function of transformers.

    query: [1, H, N, D]; key, value: [S, T, K, D]; the mask is the plan's. Returns [1, N, H, D]."""
    if softcap is not None or s_aux is not None:
        raise ConfigError("serving.model: the local engine has no attention with soft caps or sinks")
    return attend(query[0].transpose(0, 1), key, value, plan, scaling)[None], None


def attend(query_NHD: Tensor, key: Tensor, value: Tensor, plan: AttentionPlan, scaling: float | None) -> Tensor:
    """key, value: [S, T, K, D]. Returns [N, H, D]."""
    parts_NHD = []
    if plan.num_decoding:
        parts_NHD.append(_decode(query_NHD[: plan.num_decoding], key, value, plan, scaling))
    for row in plan.prefills:
        query_HPD = query_NHD[row.first : row.first + row.end - row.start].transpose(0, 1)
        mixed_1HPD = F.scaled_dot_product_attention(
            query_HPD[None],
            key[row.slot, None, : row.end].transpose(1, 2),
            value[row.slot, None, : row.end].transpose(1, 2),
            attn_mask=row.mask_PC,
            is_causal=row.mask_PC is None,
            scale=scaling,
            enable_gqa=query_NHD.shape[1] != key.shape[2],
        )
        parts_NHD.append(mixed_1HPD[0].transpose(0, 1))
    return parts_NHD[0] if len(parts_NHD) == 1 else torch.cat(parts_NHD)


def _decode(query_BHD: Tensor, key: Tensor, value: Tensor, plan: AttentionPlan, scaling: float | None) -> Tensor:
    """One query position for each row; returns [B, H, D]."""
    rows, heads, size = query_BHD.shape
    query_BKGD = query_BHD.reshape(rows, key.shape[2], -1, size)
    key, value = key[:, : plan.keys], value[:, : plan.keys]
    if plan.gather_B is not None:
        blocks = [(0, rows, key.index_select(0, plan.gather_B), value.index_select(0, plan.gather_B))]
    else:
        blocks = [
            (first, last, key[slot : slot + last - first], value[slot : slot + last - first])
            for first, last, slot in plan.runs
        ]
    mixed_BKGD = [
        F.scaled_dot_product_attention(
            query_BKGD[first:last],
            key_BCKD.transpose(1, 2),
            value_BCKD.transpose(1, 2),
            attn_mask=plan.mask_B11C[first:last],
            scale=scaling,
        )
        for first, last, key_BCKD, value_BCKD in blocks
    ]
    return (mixed_BKGD[0] if len(mixed_BKGD) == 1 else torch.cat(mixed_BKGD)).reshape(rows, heads, size)
