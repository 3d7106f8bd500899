"""The passes over the vocabulary as Triton kernels, which must match `torch_passes`.

In the forward pass, each program takes a block of tokens through a share of the vocabulary with logits in registers
only; the shares' moments are put together in torch, always in the same order. In the backward pass, one kernel
writes the gradient by the logits of as many ids as `SLAB` has room for, and torch multiplies it, whose products no
kernel of this size beats. Half precision is multiplied as it is and summed in float32. Float32 is multiplied in the
forward pass and for the logits' gradient as three products of TF32 parts, which is as exact as float32 (at SmolLM2's
sizes the highest logit is 1e-6 from float64's, and 5e-6 without parts) and three times as fast.

Legend: N tokens, D hidden size, V vocabulary, S shares of it."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from onward_kernels.head import FLOOR, NOTHING, Head, Moments, Slopes

SHARE = 4096  # ids that one program of the forward pass goes through
SLAB = 2**26  # numbers
PRECISION = "tf32x3"  # of float32 alone
# The interpreter adds up bfloat16 as if it were integers: there, and only there, it is widened first.
INTERPRETED = triton.knobs.runtime.interpret


class TritonPasses:
    def moments(self, head: Head) -> Moments:
        tokens, shares = len(head.hidden_ND), triton.cdiv(len(head.weight_VD), SHARE)
        found_SN = head.hidden_ND.new_zeros(4, shares, tokens, dtype=torch.float32)
        if tokens:
            sizes = blocks(_multiplied(head), head.mask is not None)
            grid = (triton.cdiv(tokens, sizes["BLOCK_N"]), shares)
            _moments[grid](*_given(head), *found_SN, *_sizes(head), SHARE=SHARE, **_set(head), **sizes)
        return _together(Moments(*found_SN))

    def gradients(
        self, head: Head, highest_N: Tensor, slopes: Slopes, wanted: tuple[bool, bool]
    ) -> tuple[Tensor | None, Tensor | None]:
        tokens, vocabulary = len(head.hidden_ND), len(head.weight_VD)
        grad_hidden_ND = torch.zeros_like(head.hidden_ND, dtype=torch.float32) if wanted[0] else None
        grad_weight_VD = torch.zeros_like(head.weight_VD) if wanted[1] else None
        given, sizes = _given(head), blocks(_multiplied(head), head.mask is not None)
        hidden_ND, weight_VD = given[:2]
        slab = max(SLAB // max(tokens, 1) // sizes["BLOCK_V"], 1) * sizes["BLOCK_V"]
        for start in range(0, vocabulary if tokens else 0, slab):
            ids = slice(start, min(start + slab, vocabulary))
            grad_NW = hidden_ND.new_empty(tokens, ids.stop - start)
            grid = (triton.cdiv(tokens, sizes["BLOCK_N"]), triton.cdiv(ids.stop - start, sizes["BLOCK_V"]))
            _grad_logits[grid](
                *given, highest_N, *slopes, grad_NW, *_sizes(head), start, ids.stop, **_set(head), **sizes
            )
            if grad_hidden_ND is not None:
                grad_hidden_ND += _product(grad_NW, weight_VD[ids])
            if grad_weight_VD is not None:
                grad_weight_VD[ids] = _product(grad_NW.T, hidden_ND)
        return None if grad_hidden_ND is None else grad_hidden_ND.to(head.hidden_ND.dtype), grad_weight_VD


def _together(shares: Moments) -> Moments:
    """Compute the moments of the whole vocabulary from those of its shares."""
    highest_N = shares.highest_N.amax(0)
    step_SN = shares.highest_N - highest_N
    total_N = (shares.total_N * step_SN.exp()).sum(0)
    product_N = ((shares.product_N + step_SN * shares.total_N) * step_SN.exp()).sum(0)
    return Moments(highest_N, total_N, product_N, shares.target_N.sum(0))


def _multiplied(head: Head) -> torch.dtype:
    return torch.promote_types(head.hidden_ND.dtype, head.weight_VD.dtype)


def _product(one: Tensor, other: Tensor) -> Tensor:
    """Multiply two matrices and sum in float32."""
    if one.is_cuda and one.dtype != torch.float32:
        return torch.mm(one, other, out_dtype=torch.float32)
    return one.float() @ other.float()


def _given(head: Head) -> tuple[Tensor, ...]:
    """Return the tensors that both kernels read; in the place of a missing mask, ones that are not looked at."""
    multiplied = _multiplied(head)
    hidden_ND, weight_VD = (tensor.to(multiplied).contiguous() for tensor in (head.hidden_ND, head.weight_VD))
    targets_N, temperature_N = head.targets_N.contiguous(), head.temperature_N.float().contiguous()
    if head.mask is None:
        return hidden_ND, weight_VD, targets_N, temperature_N, targets_N, targets_N
    return hidden_ND, weight_VD, targets_N, temperature_N, head.mask.bits_MP.contiguous(), head.mask.set_N.contiguous()


def _sizes(head: Head) -> tuple[int, int, int]:
    return len(head.hidden_ND), *head.weight_VD.shape


def _set(head: Head) -> dict[str, bool | float | str]:
    fixed = {"WIDEN": INTERPRETED, "PRECISION": PRECISION, "FLOOR": FLOOR, "NOTHING": NOTHING}
    return {"MASKED": head.mask is not None, **fixed}


def blocks(multiplied: torch.dtype, masked: bool) -> dict[str, int]:
    """Return the block sizes that were fastest on an H200, at the sizes of SmolLM2-135M, Qwen3-0.6B and Qwen3-8B."""
    if multiplied == torch.float32:
        return {"BLOCK_N": 128, "BLOCK_V": 128, "BLOCK_D": 32, "num_warps": 8}
    if masked:
        return {"BLOCK_N": 64, "BLOCK_V": 128, "BLOCK_D": 64, "num_warps": 4}
    return {"BLOCK_N": 128, "BLOCK_V": 256, "BLOCK_D": 64, "num_warps": 8}


@triton.jit
def _logits(
    hidden, weight, temperature, bits, sets, n, v, N, V, D,
    MASKED: tl.constexpr, WIDEN: tl.constexpr, PRECISION: tl.constexpr, FLOOR: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_V: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """Compute one tile. Rows are indexed with 64 bits, since V x D passes 2^31."""
    z = tl.zeros((BLOCK_N, BLOCK_V), tl.float32)
    row_n, row_v = n.to(tl.int64) * D, v.to(tl.int64) * D
    for start in range(0, D, BLOCK_D):
        d = start + tl.arange(0, BLOCK_D)
        h = tl.load(hidden + row_n[:, None] + d[None, :], mask=(n < N)[:, None] & (d < D)[None, :], other=0.0)
        w = tl.load(weight + row_v[None, :] + d[:, None], mask=(v < V)[None, :] & (d < D)[:, None], other=0.0)
        if WIDEN:
            h, w = h.to(tl.float32), w.to(tl.float32)
        z = tl.dot(h, w, z, input_precision=PRECISION)
    z = z / tl.load(temperature + n, mask=n < N, other=1.0)[:, None]
    counts = (v < V)[None, :] & (n < N)[:, None]
    if MASKED:
        row = tl.load(sets + n, mask=n < N, other=-1).to(tl.int64)
        place = row[:, None] * ((V + 31) // 32) + (v // 32)[None, :]
        word = tl.load(bits + place, mask=counts & (row >= 0)[:, None], other=-1)
        counts = counts & (((word >> (v % 32)[None, :]) & 1) != 0)
    return tl.where(counts, z, FLOOR)


@triton.jit
def _moments(
    hidden, weight, targets, temperature, bits, sets, highest_out, total_out, product_out, target_out, N, V, D,
    SHARE: tl.constexpr, MASKED: tl.constexpr, WIDEN: tl.constexpr, PRECISION: tl.constexpr,
    FLOOR: tl.constexpr, NOTHING: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_V: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """Compute the moments as in `torch_passes`, for one share of the vocabulary."""
    tl.static_assert(SHARE % BLOCK_V == 0, "a block would reach into the next share")
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    goal = tl.load(targets + n, mask=n < N, other=-1)
    highest = tl.full((BLOCK_N,), FLOOR, tl.float32)
    total = tl.zeros((BLOCK_N,), tl.float32)
    product = tl.zeros((BLOCK_N,), tl.float32)
    target = tl.zeros((BLOCK_N,), tl.float32)
    first = tl.program_id(1) * SHARE
    for start in range(first, tl.minimum(first + SHARE, V), BLOCK_V):
        v = start + tl.arange(0, BLOCK_V)
        z = _logits(
            hidden, weight, temperature, bits, sets, n, v, N, V, D,
            MASKED, WIDEN, PRECISION, FLOOR, BLOCK_N, BLOCK_V, BLOCK_D,
        )  # fmt: skip
        target += tl.sum(tl.where(v[None, :] == goal[:, None], z, 0.0), 1)
        raised = tl.maximum(highest, tl.max(z, 1))
        y = z - raised[:, None]
        e = tl.exp(y)
        step = highest - raised
        product = (product + step * total) * tl.exp(step) + tl.sum(e * y, 1)
        total = total * tl.exp(step) + tl.sum(e, 1)
        highest = raised
    place = tl.program_id(1).to(tl.int64) * N + n
    tl.store(highest_out + place, highest, mask=n < N)
    tl.store(total_out + place, total, mask=n < N)
    tl.store(product_out + place, product, mask=n < N)
    tl.store(target_out + place, target, mask=n < N)


@triton.jit
def _grad_logits(
    hidden, weight, targets, temperature, bits, sets, highest_in, level_in, slope_in, target_in, grad_out,
    N, V, D, first, last,
    MASKED: tl.constexpr, WIDEN: tl.constexpr, PRECISION: tl.constexpr,
    FLOOR: tl.constexpr, NOTHING: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_V: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """Compute one tile of ids from `first` up to `last`, which is what `grad_out` holds."""
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    v = first + tl.program_id(1) * BLOCK_V + tl.arange(0, BLOCK_V)
    z = _logits(
        hidden, weight, temperature, bits, sets, n, v, N, V, D,
        MASKED, WIDEN, PRECISION, FLOOR, BLOCK_N, BLOCK_V, BLOCK_D,
    )  # fmt: skip
    goal = tl.load(targets + n, mask=n < N, other=-1)
    highest = tl.load(highest_in + n, mask=n < N, other=0.0)
    level = tl.load(level_in + n, mask=n < N, other=0.0)
    slope = tl.load(slope_in + n, mask=n < N, other=0.0)
    target = tl.load(target_in + n, mask=n < N, other=0.0)
    y = z - highest[:, None]
    grad = tl.exp(y) * (level[:, None] + slope[:, None] * tl.maximum(y, NOTHING))
    grad += tl.where(v[None, :] == goal[:, None], target[:, None], 0.0)
    place = n.to(tl.int64)[:, None] * (last - first) + (v - first)[None, :]
    tl.store(grad_out + place, grad.to(grad_out.dtype.element_ty), mask=(n < N)[:, None] & (v < last)[None, :])
