"""The naive head: whole logits, log_softmax, autograd.

Legend: N tokens, D hidden size, V vocabulary."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

Inputs = tuple[Tensor, Tensor, Tensor, Tensor]


def make_inputs(n: int, d: int, v: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Inputs:
    generator = torch.Generator().manual_seed(seed)
    hidden_ND = torch.randn(n, d, generator=generator, dtype=dtype).requires_grad_()
    weight_VD = torch.randn(v, d, generator=generator, dtype=dtype).requires_grad_()
    targets_N = torch.randint(0, v, (n,), generator=generator)
    temperature_N = torch.rand(n, generator=generator).to(dtype) + 0.3
    return hidden_ND, weight_VD, targets_N, temperature_N


def naive(
    hidden_ND: Tensor,
    weight_VD: Tensor,
    targets_N: Tensor,
    temperature_N: Tensor,
    allowed: Sequence[Sequence[int] | None] | None = None,
) -> tuple[Tensor, Tensor]:
    logits_NV = (hidden_ND @ weight_VD.T) / temperature_N[:, None]
    for token, ids in enumerate(allowed or ()):
        if ids is not None:
            shut_V = torch.ones(len(weight_VD), dtype=torch.bool)
            shut_V[list(ids)] = False
            logits_NV = logits_NV.index_put(
                (torch.tensor(token), shut_V.nonzero()[:, 0]), torch.tensor(-1e6).to(logits_NV)
            )
    logp_NV = torch.log_softmax(logits_NV, dim=-1)
    return logp_NV.gather(1, targets_N[:, None])[:, 0], -(logp_NV.exp() * logp_NV).sum(-1)


def gradients(
    function: Callable[..., tuple[Tensor, Tensor]], inputs: Inputs, logprob_N: Tensor, entropy_N: Tensor
) -> tuple[Tensor, ...]:
    logprobs_N, entropies_N = function(*inputs)
    return torch.autograd.grad((logprobs_N * logprob_N + entropies_N * entropy_N).sum(), inputs[:2])


def some_ids(targets_N: Tensor, vocabulary: int, seed: int) -> list[list[int] | None]:
    """Return for each token all ids (None), its target alone, or its target and others."""
    generator = torch.Generator().manual_seed(seed)
    allowed: list[list[int] | None] = []
    for token, target in enumerate(targets_N.tolist()):
        others = torch.randint(0, vocabulary, (max(1, vocabulary // 3),), generator=generator).tolist()
        allowed.append((None, [target], [target, *others])[token % 3])
    return allowed


def both_gradients(outputs: Sequence[Tensor], inputs: Inputs, seed: int = 0) -> tuple[Tensor, ...]:
    """Return the gradients of both outputs' sum, weighted by random numbers from the seed."""
    outer = torch.randn(2, len(outputs[0]), generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    loss = sum((output_N.double() * weights_N).sum() for output_N, weights_N in zip(outputs, outer, strict=True))
    assert isinstance(loss, Tensor)
    return torch.autograd.grad(loss, inputs[:2])
