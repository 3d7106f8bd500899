"""Schulman's three estimates of KL(policy || other), from samples of the policy (joschu.net/blog/kl-approx.html).

With d = log pi - log other: k1 = d, k2 = d^2 / 2, k3 = exp(-d) - 1 + d. k1 and k3 are unbiased, k2 and k3 never
negative. Which has a gradient where: docs/decisions/0014-kl-placement.md.

Legend: N sampled tokens of a micro-batch.
"""

from typing import Literal

from torch import Tensor

Estimator = Literal["k1", "k2", "k3"]


def k1(logprobs_N: Tensor, other_N: Tensor) -> Tensor:
    return logprobs_N - other_N


def k2(logprobs_N: Tensor, other_N: Tensor) -> Tensor:
    return (logprobs_N - other_N).square() / 2


def k3(logprobs_N: Tensor, other_N: Tensor) -> Tensor:
    difference_N = other_N - logprobs_N
    return difference_N.exp() - 1 - difference_N


def estimate(estimator: Estimator, logprobs_N: Tensor, other_N: Tensor) -> Tensor:
    match estimator:
        case "k1":
            return k1(logprobs_N, other_N)
        case "k2":
            return k2(logprobs_N, other_N)
        case "k3":
            return k3(logprobs_N, other_N)
