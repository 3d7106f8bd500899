"""The passes over the vocabulary in plain torch, tile by tile: the definition that `triton_passes` must match.

Each tile is computed in the forward pass, dropped, and computed again in the backward pass: one more than the three
matrix products that are needed, so that no [tokens, vocabulary] matrix is ever written to memory. A tile that stays in
the processor's cache makes up for most of it. Half precision is widened before it is multiplied.

Legend: N tokens, D hidden size, V vocabulary, C tokens and W ids of a tile."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from onward_kernels.head import FLOOR, NOTHING, Head, Moments, Slopes


@dataclass(frozen=True)
class TorchPasses:
    chunk: int
    """Tokens of a tile."""
    width: int
    """Ids of a tile."""

    def moments(self, head: Head) -> Moments:
        scaled_ND = _scaled(head)
        room = self._room(head, scaled_ND)
        total_N, product_N, target_N = scaled_ND.new_zeros(3, len(scaled_ND))
        found = Moments(torch.full_like(total_N, FLOOR), total_N, product_N, target_N)
        for ids in _slices(len(head.weight_VD), self.width):
            weight_WD = head.weight_VD[ids].to(head.wide)
            for tokens in _slices(len(scaled_ND), self.chunk):
                z_CW, e_CW = room.tiles(tokens, ids)
                _logits(head, scaled_ND, weight_WD, tokens, ids, z_CW)
                _add(found, z_CW, e_CW, head.targets_N, tokens, ids)
        return found

    def gradients(
        self, head: Head, highest_N: Tensor, slopes: Slopes, wanted: tuple[bool, bool]
    ) -> tuple[Tensor | None, Tensor | None]:
        scaled_ND, hidden_ND = _scaled(head), head.hidden_ND.to(head.wide)
        room = self._room(head, scaled_ND)
        grad_hidden_ND = torch.zeros_like(scaled_ND) if wanted[0] else None
        grad_weight_VD = _unwritten(head) if wanted[1] else None
        for ids in _slices(len(head.weight_VD), self.width):
            weight_WD = head.weight_VD[ids].to(head.wide)
            grad_weight_WD = None if grad_weight_VD is None else grad_weight_VD[ids].to(head.wide)
            for tokens in _slices(len(scaled_ND), self.chunk):
                z_CW, e_CW = room.tiles(tokens, ids)
                _logits(head, scaled_ND, weight_WD, tokens, ids, z_CW)
                grad_CW = _grad_logits(z_CW, e_CW, highest_N[tokens], Slopes(*(each_N[tokens] for each_N in slopes)))
                _add_targets(grad_CW, head.targets_N[tokens], slopes.target_N[tokens], ids)
                if grad_hidden_ND is not None:
                    grad_hidden_ND[tokens].addmm_(grad_CW, weight_WD)
                if grad_weight_WD is not None:
                    grad_weight_WD.addmm_(grad_CW.T, hidden_ND[tokens], beta=int(tokens.start > 0))
            if grad_weight_VD is not None and grad_weight_VD.dtype != head.wide:
                grad_weight_VD[ids] = grad_weight_WD
        return None if grad_hidden_ND is None else grad_hidden_ND.to(head.hidden_ND.dtype), grad_weight_VD

    def _room(self, head: Head, scaled_ND: Tensor) -> "_Room":
        return _Room(scaled_ND.new_empty(2, min(self.chunk, len(scaled_ND)) * min(self.width, len(head.weight_VD))))


@dataclass(frozen=True)
class _Room:
    """Memory for two tiles that is used again for each: to allocate it anew costs more than what is computed in it."""

    numbers_2K: Tensor

    def tiles(self, tokens: slice, ids: slice) -> tuple[Tensor, Tensor]:
        shape = (tokens.stop - tokens.start, ids.stop - ids.start)
        one_CW, other_CW = (numbers_K[: shape[0] * shape[1]].view(shape) for numbers_K in self.numbers_2K)
        return one_CW, other_CW


def _unwritten(head: Head) -> Tensor:
    """Return memory that the first chunk of tokens writes, or zeros where there is no token."""
    return torch.empty_like(head.weight_VD) if len(head.hidden_ND) else torch.zeros_like(head.weight_VD)


def _scaled(head: Head) -> Tensor:
    """Divide hidden states by temperature: N x D numbers instead of N x V."""
    return head.hidden_ND.to(head.wide) / head.temperature_N.to(head.wide)[:, None]


def _slices(length: int, step: int) -> Iterator[slice]:
    return (slice(start, min(start + step, length)) for start in range(0, length, step))


def _logits(head: Head, scaled_ND: Tensor, weight_WD: Tensor, tokens: slice, ids: slice, out_CW: Tensor) -> None:
    torch.mm(scaled_ND[tokens], weight_WD.T, out=out_CW)
    if head.mask is not None:
        out_CW.masked_fill_(~head.mask.allowed(tokens, ids), FLOOR)


def _add(found: Moments, z_CW: Tensor, e_CW: Tensor, targets_N: Tensor, tokens: slice, ids: slice) -> None:
    """Add one tile to its tokens' moments. Both `z_CW` and `e_CW` are overwritten."""
    highest_C, total_C, product_C, target_C = (each_N[tokens] for each_N in found)
    here_K = _inside(targets_N[tokens], ids)
    target_C[here_K] = z_CW[here_K, targets_N[tokens][here_K] - ids.start]
    raised_C = torch.maximum(highest_C, z_CW.amax(1))
    y_CW = z_CW.sub_(raised_C[:, None])
    torch.exp(y_CW, out=e_CW)
    step_C = highest_C - raised_C
    product_C.add_(step_C * total_C).mul_(step_C.exp())
    total_C.mul_(step_C.exp()).add_(e_CW.sum(1))
    product_C.add_(e_CW.mul_(y_CW).sum(1))
    highest_C.copy_(raised_C)


def _grad_logits(z_CW: Tensor, e_CW: Tensor, highest_C: Tensor, slopes_C: Slopes) -> Tensor:
    """Return the gradient by the logits, without the target's share of it. Both tiles are overwritten."""
    y_CW = z_CW.sub_(highest_C[:, None])
    if not slopes_C.slope_N.any():
        return y_CW.exp_().mul_(slopes_C.level_N[:, None])
    torch.exp(y_CW, out=e_CW)
    return y_CW.clamp_(min=NOTHING).mul_(slopes_C.slope_N[:, None]).add_(slopes_C.level_N[:, None]).mul_(e_CW)


def _add_targets(grad_CW: Tensor, targets_C: Tensor, grad_C: Tensor, ids: slice) -> None:
    here_K = _inside(targets_C, ids)
    grad_CW[here_K, targets_C[here_K] - ids.start] += grad_C[here_K]


def _inside(targets_C: Tensor, ids: slice) -> Tensor:
    """Return the rows whose target is among these ids."""
    return ((targets_C >= ids.start) & (targets_C < ids.stop)).nonzero()[:, 0]
