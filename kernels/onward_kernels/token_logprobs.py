"""Log-probability of given tokens, and entropy, from hidden states and the output matrix.

With z = hidden weight^T / temperature, and minus infinity where the sampling mask does not allow an id:

    logprob = z[target] - logsumexp(z)          d logprob / dz = onehot(target) - p
    entropy = logsumexp(z) - sum p z            d entropy / dz = -p (log p + entropy)

A vocabulary of up to `WIDTH` ids without masks is one log_softmax for `chunk` tokens at a time, here, with logits as
precise as hidden states. For a larger one, or with masks, logits exist only in tiles of tokens and ids, in float32 or
wider: `torch_passes`, which define the result, or on a GPU `triton_passes`. `python -m bench logprob_head` compares
the former with whole logits, and `gpu_head` the latter.

Legend: N tokens, D hidden size, V vocabulary, C tokens of a chunk."""

from typing import Any

import torch
from torch import Tensor

from onward_kernels.head import Head
from onward_kernels.sampling_mask import SamplingMask
from onward_kernels.tiled import Passes, TiledLogprobs
from onward_kernels.torch_passes import TorchPasses

DEFAULT_CHUNK = 4096
WIDTH = 4096
CACHED = 512  # tokens of a tile, at most: one of 8 MiB stays in a processor's last cache


def token_logprobs_and_entropy(
    hidden_ND: Tensor,
    weight_VD: Tensor,
    targets_N: Tensor,
    temperature_N: Tensor,
    chunk: int = DEFAULT_CHUNK,
    *,
    mask: SamplingMask | None = None,
    width: int = WIDTH,
) -> tuple[Tensor, Tensor]:
    """Return (logprobs_N, entropy_N) in nats, float32 or wider, of softmax(hidden weight^T / temperature).

    The softmax is over the ids that `mask` allows.

    Differentiable in `hidden_ND` and `weight_VD`. Temperatures are positive. Up to `width` ids, peak memory is of
    the order of `chunk` x V: where all tokens fit into one chunk its probabilities are kept for the backward pass,
    otherwise each chunk is computed again there. Beyond `width` it is of the order of a tile, at most `chunk` x
    `width`, and of the gradients.

    Raises ValueError naming the token whose target its mask does not allow or, beyond `width`, whose target or
    temperature is out of range."""
    assert hidden_ND.ndim == 2
    assert targets_N.shape == temperature_N.shape == hidden_ND.shape[:1]
    if mask is None and len(weight_VD) <= width:
        logprobs_N, entropy_N = _TokenLogprobs.apply(hidden_ND, weight_VD, targets_N, temperature_N, chunk)
        return logprobs_N, entropy_N
    head = Head(hidden_ND, weight_VD, targets_N, temperature_N, mask)
    head.check()
    passes = _passes(head, chunk, width)
    logprobs_N, entropy_N = TiledLogprobs.apply(hidden_ND, weight_VD, targets_N, temperature_N, mask, passes)
    return logprobs_N, entropy_N


def _passes(head: Head, chunk: int, width: int) -> Passes:
    if head.hidden_ND.is_cuda and head.wide == torch.float32:
        from onward_kernels.triton_passes import TritonPasses  # needs Triton, which a machine without a GPU may lack

        return TritonPasses()
    return TorchPasses(min(chunk, CACHED), width)


def _log_softmax(hidden_CD: Tensor, weight_VD: Tensor, temperature_C: Tensor) -> Tensor:
    logits_CV = hidden_CD @ weight_VD.T
    if logits_CV.dtype in (torch.float16, torch.bfloat16):
        logits_CV = logits_CV.float()
    return torch.log_softmax(logits_CV / temperature_C[:, None], dim=-1)


class _TokenLogprobs(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden_ND: Tensor, weight_VD: Tensor, targets_N: Tensor, temperature_N: Tensor, chunk: int
    ) -> tuple[Tensor, Tensor]:
        logprobs, entropies = [], []
        kept = None
        for start in range(0, len(hidden_ND), chunk):
            part = slice(start, start + chunk)
            logp_CV = _log_softmax(hidden_ND[part], weight_VD, temperature_N[part])
            logprobs.append(logp_CV.gather(1, targets_N[part, None])[:, 0])
            entropies.append(-(logp_CV.exp() * logp_CV).sum(-1))
            kept = logp_CV if len(hidden_ND) <= chunk else None
        empty = hidden_ND.new_zeros(0)
        entropy_N = torch.cat(entropies) if entropies else empty
        ctx.chunk, ctx.kept = chunk, kept
        ctx.save_for_backward(hidden_ND, weight_VD, targets_N, temperature_N, entropy_N)
        return (torch.cat(logprobs) if logprobs else empty), entropy_N

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Tensor | None, Tensor | None, None, None, None]:
        hidden_ND, weight_VD, targets_N, temperature_N, entropy_N = ctx.saved_tensors
        grad_logprobs_N, grad_entropy_N = gradients
        grad_hidden_ND, grad_weight_VD = torch.zeros_like(hidden_ND), torch.zeros_like(weight_VD)
        for start in range(0, len(hidden_ND), ctx.chunk):
            part = slice(start, start + ctx.chunk)
            logp_CV = ctx.kept
            if logp_CV is None:
                logp_CV = _log_softmax(hidden_ND[part], weight_VD, temperature_N[part])
            grad_CV = _grad_logits(
                logp_CV, targets_N[part], entropy_N[part], grad_logprobs_N[part], grad_entropy_N[part]
            )
            grad_CV = (grad_CV / temperature_N[part, None]).to(hidden_ND.dtype)
            grad_hidden_ND[part] = grad_CV @ weight_VD
            grad_weight_VD += grad_CV.T @ hidden_ND[part]
        return grad_hidden_ND, grad_weight_VD, None, None, None


def _grad_logits(
    logp_CV: Tensor, targets_C: Tensor, entropy_C: Tensor, grad_logprobs_C: Tensor, grad_entropy_C: Tensor
) -> Tensor:
    p_CV = logp_CV.exp()
    grad_CV = p_CV * -grad_logprobs_C[:, None]
    if bool(grad_entropy_C.any()):
        grad_CV -= grad_entropy_C[:, None] * p_CV * (logp_CV + entropy_C[:, None])
    return grad_CV.scatter_add_(1, targets_C[:, None], grad_logprobs_C[:, None].to(grad_CV.dtype))
