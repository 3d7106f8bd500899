"""The ids each token could be sampled from: those that top-k, top-p, min-p or a grammar left of the vocabulary.

Legend: N tokens, M distinct sets, V vocabulary, P words of 32 ids, C tokens of a chunk, W ids of a tile."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

EVERY_ID = -1


@dataclass(frozen=True)
class SamplingMask:
    """Sets of allowed ids as bits, in the layout of grammar engines: id `v` is bit `v % 32` of word `v // 32`.

    Tokens share sets, and those that were sampled from the whole vocabulary need none: `set_N` says which row
    belongs to a token, and `EVERY_ID` that all ids were allowed. Bits past the vocabulary mean nothing."""

    bits_MP: Tensor  # int32
    set_N: Tensor  # int64

    @classmethod
    def of(cls, allowed: Sequence[Sequence[int] | None], vocabulary: int) -> "SamplingMask":
        """Make a mask from one list of ids for each token, None where all are allowed; equal lists are stored once.

        Raises ValueError naming the token whose list is empty or has ids outside the vocabulary."""
        rows: dict[tuple[int, ...], int] = {}
        sets = []
        for token, ids in enumerate(allowed):
            if ids is None:
                sets.append(EVERY_ID)
                continue
            if not ids:
                raise ValueError(f"token {token}: its mask allows no id")
            if min(ids) < 0 or max(ids) >= vocabulary:
                raise ValueError(f"token {token}: its mask allows ids outside the vocabulary of {vocabulary}")
            sets.append(rows.setdefault(tuple(sorted(set(ids))), len(rows)))
        words = np.zeros((len(rows), -(-vocabulary // 32)), dtype=np.uint32)
        for ids, row in rows.items():
            places = np.asarray(ids)
            np.bitwise_or.at(words[row], places // 32, np.uint32(1) << (places % 32).astype(np.uint32))
        return cls(torch.from_numpy(words.view(np.int32)), torch.tensor(sets, dtype=torch.long))

    def to(self, device: torch.device | str) -> "SamplingMask":
        return SamplingMask(self.bits_MP.to(device), self.set_N.to(device))

    def allowed(self, tokens: slice, ids: slice) -> Tensor:
        """Return [C, W] booleans for these tokens and ids."""
        set_C = self.set_N[tokens]
        free_C1 = (set_C == EVERY_ID)[:, None]
        if not len(self.bits_MP):
            return free_C1.expand(-1, ids.stop - ids.start)
        id_W = torch.arange(ids.start, ids.stop, device=set_C.device)
        first = ids.start // 32
        words_CP = self.bits_MP[set_C.clamp(min=0), first : -(-ids.stop // 32)]
        return ((words_CP[:, id_W // 32 - first] >> (id_W % 32).int()) & 1).bool() | free_C1

    def check(self, targets_N: Tensor, vocabulary: int) -> None:
        """Raise ValueError where the sets do not fit, or naming the first token that could not have been sampled.

        Such a token's set is empty, or lacks its target."""
        if self.set_N.shape != targets_N.shape:
            raise ValueError(f"the mask is for {len(self.set_N)} tokens, but there are {len(targets_N)}")
        if self.bits_MP.dtype != torch.int32 or self.bits_MP.shape[1:] != (-(-vocabulary // 32),):
            raise ValueError(f"the mask's sets are not int32 words of a vocabulary of {vocabulary}")
        if not len(targets_N):
            return
        if int(self.set_N.min()) < EVERY_ID or int(self.set_N.max()) >= len(self.bits_MP):
            raise ValueError(f"the mask has {len(self.bits_MP)} sets, but set_N names others")
        masked_K = (self.set_N != EVERY_ID).nonzero()[:, 0]
        target_K = targets_N[masked_K]
        words_K = self.bits_MP[self.set_N[masked_K], target_K // 32]
        lacking = masked_K[(words_K >> (target_K % 32).int()) & 1 == 0]
        if len(lacking):
            token = int(lacking[0])
            if not self.allowed(slice(token, token + 1), slice(0, vocabulary)).any():
                raise ValueError(f"token {token}: its mask allows no id")
            raise ValueError(f"token {token}: its mask does not allow its target, {int(targets_N[token])}")
