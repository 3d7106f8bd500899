"""Log-probability and entropy of a head whose logits exist only as tiles, whatever computes the tiles.

Legend: N tokens, D hidden size, V vocabulary."""

from typing import Any, Protocol

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from onward_kernels.head import Head, Moments, Slopes
from onward_kernels.sampling_mask import SamplingMask


class Passes(Protocol):
    """The two passes over the vocabulary."""

    def moments(self, head: Head) -> Moments: ...

    def gradients(
        self, head: Head, highest_N: Tensor, slopes: Slopes, wanted: tuple[bool, bool]
    ) -> tuple[Tensor | None, Tensor | None]:
        """Return the gradients by hidden states and by weights, each in its own precision and None where not wanted."""
        ...


class TiledLogprobs(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden_ND: Tensor,
        weight_VD: Tensor,
        targets_N: Tensor,
        temperature_N: Tensor,
        mask: SamplingMask | None,
        passes: Passes,
    ) -> tuple[Tensor, Tensor]:
        with torch.autocast(hidden_ND.device.type, enabled=False):
            found = passes.moments(Head(hidden_ND, weight_VD, targets_N, temperature_N, mask))
        log_total_N = found.total_N.log()
        entropy_N = log_total_N - found.product_N / found.total_N
        ctx.mask, ctx.passes = mask, passes
        ctx.save_for_backward(hidden_ND, weight_VD, targets_N, temperature_N, found.highest_N, found.total_N, entropy_N)
        return found.target_N - found.highest_N - log_total_N, entropy_N

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        hidden_ND, weight_VD, targets_N, temperature_N, highest_N, total_N, entropy_N = ctx.saved_tensors
        head = Head(hidden_ND, weight_VD, targets_N, temperature_N, ctx.mask)
        by_logprob_N, by_entropy_N = (gradient_N / temperature_N.to(head.wide) for gradient_N in gradients)
        # d/dz = by_logprob (onehot - p) - by_entropy p (log p + entropy), with p = e / total, log p = y - log total
        level_N = -(by_logprob_N + by_entropy_N * (entropy_N - total_N.log())) / total_N
        slopes = Slopes(level_N, -by_entropy_N / total_N, by_logprob_N)
        wanted = (ctx.needs_input_grad[0], ctx.needs_input_grad[1])
        return *ctx.passes.gradients(head, highest_N, slopes, wanted), None, None, None, None
