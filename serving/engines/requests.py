"""Checks of a request that all engines share, and the options that make its answer untrainable.

An answer is trainable when it is a sample of softmax(logits / temperature) over all ids, or over those of masks that
are known. This module imports nothing heavy."""

import math

from core.errors import InvalidRequest
from core.events import Sampling
from core.ports import GenerateRequest
from core.temperature import LEAST_TEMPERATURE

GREEDY_BELOW = 1e-6
"""A temperature below it asks for the likeliest token (sglang 0.5.23, srt/sampling/sampling_params.py)."""

_MAX_PENALTY = 2.0
_MAX_BIAS = 100.0
_SEED_BOUND = 2**63


def untrainable(sampling: Sampling, *, tells_sets: bool = False) -> tuple[str, ...]:
    """Return why tokens sampled like this are not of softmax(logits / temperature); () when they are.

    `tells_sets`: the engine tells which ids top-k, top-p and min-p left, over which they are."""
    reasons = {
        "temperature_zero": sampling.temperature < GREEDY_BELOW,
        "top_p": sampling.top_p < 1 and not tells_sets,
        "top_k": sampling.top_k is not None and not tells_sets,
        "min_p": bool(sampling.min_p) and not tells_sets,
        "frequency_penalty": sampling.frequency_penalty != 0,
        "presence_penalty": sampling.presence_penalty != 0,
        "logit_bias": bool(sampling.logit_bias),
    }
    return tuple(reason for reason, holds in reasons.items() if holds)


def check_request(request: GenerateRequest, vocabulary: int, context_length: int) -> None:
    """Check a request. Raises InvalidRequest naming the field.

    A server that is given a token outside its vocabulary may crash (SGLang's scheduler does), so nothing of this is
    left to the engine."""
    _check_prompt(request.prompt_token_ids, vocabulary, context_length)
    check_sampling(request.sampling, vocabulary)
    prompt_tokens, max_tokens = len(request.prompt_token_ids), request.sampling.max_tokens
    if prompt_tokens + max_tokens > context_length:
        raise InvalidRequest(
            f"max_tokens: {max_tokens} after {prompt_tokens} prompt tokens is beyond the context of {context_length}",
            param="max_tokens",
            code="context_length_exceeded",
        )


def _check_prompt(prompt: tuple[int, ...], vocabulary: int, context_length: int) -> None:
    if not prompt:
        raise InvalidRequest("prompt_token_ids: empty", param="prompt_token_ids")
    if not (min(prompt) >= 0 and max(prompt) < vocabulary):
        raise InvalidRequest(f"prompt_token_ids: the vocabulary has {vocabulary} tokens", param="prompt_token_ids")
    if len(prompt) >= context_length:
        raise InvalidRequest(
            f"the prompt's {len(prompt)} tokens leave no room in a context of {context_length}",
            param="prompt_token_ids",
            code="context_length_exceeded",
        )


def check_sampling(sampling: Sampling, vocabulary: int) -> None:
    """Check sampling parameters. Raises InvalidRequest naming the field."""
    wrong = {
        "temperature": sampling.temperature != 0 and not LEAST_TEMPERATURE <= sampling.temperature < math.inf,
        "top_p": not 0 < sampling.top_p <= 1,
        "top_k": sampling.top_k is not None and sampling.top_k < 1,
        "min_p": sampling.min_p is not None and not 0 <= sampling.min_p <= 1,
        "max_tokens": sampling.max_tokens < 1,
        "seed": sampling.seed is not None and not -_SEED_BOUND <= sampling.seed < _SEED_BOUND,
        "frequency_penalty": not -_MAX_PENALTY <= sampling.frequency_penalty <= _MAX_PENALTY,
        "presence_penalty": not -_MAX_PENALTY <= sampling.presence_penalty <= _MAX_PENALTY,
        "logit_bias": any(
            not (0 <= token < vocabulary and abs(bias) <= _MAX_BIAS)
            for token, bias in (sampling.logit_bias or {}).items()
        ),
    }
    for name, is_wrong in wrong.items():
        if is_wrong:
            raise InvalidRequest(f"{name}: {getattr(sampling, name)} is out of range", param=name)
