"""Corrections for tokens that were sampled by another policy than the one that learns from them.

With r = pi / mu of a token:

    tis           min(r, cap)                                truncated importance sampling: Retrace, arXiv:1606.02647
    tis_sequence  min(product of r over the turn, cap)       the same, of the turn as a whole
    icepop        r within a band, else 0                    arXiv:2510.18855
    geometric     min(r, cap) where the geometric mean of    arXiv:2512.23075
                  the turn's r lies within a band, else 0
    none          1

They weigh the policy term only, and have no gradient. All tokens of a turn are in one micro-batch.

Legend: N sampled tokens of a micro-batch."""

import torch
from torch import Tensor

from core.settings import CorrectionSettings


def weights(log_ratio_N: Tensor, turns_N: Tensor, settings: CorrectionSettings) -> tuple[Tensor, Tensor]:
    """Return (weight_N, changed_N): each token's weight, and where it is not the plain ratio."""
    ratio_N, cap = log_ratio_N.exp(), settings.ratio_cap
    match settings.method:
        case "tis":
            return ratio_N.clamp(max=cap), ratio_N > cap
        case "tis_sequence":
            turn_N = turn_sums(log_ratio_N, turns_N).exp()
            return turn_N.clamp(max=cap), turn_N > cap
        case "none":
            return torch.ones_like(ratio_N), torch.zeros_like(ratio_N, dtype=torch.bool)
        case "icepop" | "geometric":
            kept_N = within(log_ratio_N, turns_N, settings)
            weight_N = ratio_N if settings.method == "icepop" else ratio_N.clamp(max=cap)
            return torch.where(kept_N, weight_N, 0.0), ~kept_N | (weight_N != ratio_N)


def within(log_ratio_N: Tensor, turns_N: Tensor, settings: CorrectionSettings) -> Tensor:
    """Return whether each token is within its band; True for all when the correction has none."""
    match settings.method:
        case "icepop":
            (low, high), judged_N = settings.icepop_band, log_ratio_N
        case "geometric":
            (low, high), judged_N = settings.geometric_band, turn_means(log_ratio_N, turns_N)
        case _:
            return torch.ones_like(turns_N, dtype=torch.bool)
    ratio_N = judged_N.exp()
    return (ratio_N >= low) & (ratio_N <= high)


def turn_sums(values_N: Tensor, turns_N: Tensor) -> Tensor:
    """Return [N]: the sum over each token's turn."""
    return values_N.new_zeros(int(turns_N.max()) + 1).index_add(0, turns_N, values_N)[turns_N]


def turn_means(values_N: Tensor, turns_N: Tensor) -> Tensor:
    return turn_sums(values_N, turns_N) / turn_lengths(turns_N)


def turn_lengths(turns_N: Tensor) -> Tensor:
    """Return [N]: how many sampled tokens each token's turn has."""
    return torch.bincount(turns_N)[turns_N]
