"""Kernels, each beside its plain-torch reference, which is its definition."""

from onward_kernels.sampling_mask import SamplingMask
from onward_kernels.token_logprobs import token_logprobs_and_entropy

__all__ = ["SamplingMask", "token_logprobs_and_entropy"]
