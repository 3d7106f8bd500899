"""Kernels, each beside its plain-torch reference, which is its definition."""

from onward_kernels.token_logprobs import token_logprobs_and_entropy

__all__ = ["token_logprobs_and_entropy"]
