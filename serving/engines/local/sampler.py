"""Exact sampling for many requests at once, each with its own seed and parameters.

One uniform number per token comes from the request's own generator, so that what a request samples does not depend on
who else is in the batch. The token is found by inverting the cumulative distribution in float64.

Log-probabilities are log_softmax(logits / temperature) of the model's own logits in float32, at temperature 1 where the
request asks for 0, over the ids that the row's grammar allows and that truncation leaves: what `LogprobSpace` says.
Penalties and biases change what is sampled beyond that, which is why they make a turn untrainable; with these the
log-probabilities know no truncation. R rows, V vocabulary, P words of 32 ids.
"""

import math
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from core.events import Sampling
from serving.engines.local.native.step import NativeStep, draw
from serving.engines.requests import untrainable

_BELOW_ONE = 1.0 - 2.0**-52  # times any sum of probabilities stays below it, so that the search finds a possible token


class Sampled(Protocol):
    """A row's sampling parameters."""

    @property
    def sampling(self) -> Sampling: ...

    @property
    def rng(self) -> random.Random: ...

    @property
    def output(self) -> Sequence[int]: ...

    @property
    def top_logprobs(self) -> int: ...

    @property
    def mask(self) -> NDArray[np.int32] | None:
        """The ids that its grammar allows [P], bit `v % 32` of word `v // 32` for id `v`; None: all."""
        ...

    @property
    def ids_to_tell(self) -> int:
        """How many more ids of its sets are told. 0: no further set is."""
        ...


@dataclass
class Samples:
    token_ids: list[int]
    logprobs: list[float]
    tops: dict[int, tuple[tuple[int, float], ...]] = field(default_factory=dict)  # by row, where asked for
    sets: dict[int, tuple[int, ...]] = field(default_factory=dict)
    """By row, where truncated and still told: the ids that were left, in ascending order, up to `ids_to_tell`."""


@torch.inference_mode()
def sample(logits_RV: Tensor, rows: Sequence[Sampled]) -> Samples:
    """Sample one token for each row.

    Where a row's logits are not finite, its token is arbitrary and its log-probability not finite; other rows are not
    affected."""
    temperatures = [row.sampling.temperature or 1.0 for row in rows]
    is_warm = any(temperature != 1.0 for temperature in temperatures)
    if NativeStep.fits(logits_RV) and not any(_is_narrowed(row) for row in rows):
        uniforms = [min(row.rng.random(), _BELOW_ONE) for row in rows]
        return Samples(*draw(logits_RV, temperatures if is_warm else None, uniforms))
    logits_RV = _allowed(logits_RV.float(), rows)
    scaled_RV = logits_RV
    if is_warm:
        scaled_RV = logits_RV / torch.tensor(temperatures, device=logits_RV.device)[:, None]
    logprobs_RV = scaled_RV.log_softmax(-1)
    probabilities_RV = logprobs_RV.exp()
    narrowed = [index for index, row in enumerate(rows) if untrainable(row.sampling)]
    if narrowed:
        chosen = torch.tensor(narrowed, device=logits_RV.device)
        probabilities_RV[chosen] = _narrow(logits_RV[chosen], [rows[index] for index in narrowed])
    truncated = [index for index in narrowed if not untrainable(rows[index].sampling, tells_sets=True)]
    for index in truncated:
        logprobs_RV[index] = scaled_RV[index].where(probabilities_RV[index] > 0, -math.inf).log_softmax(-1)
    cumulative_RV = probabilities_RV.cumsum(-1, dtype=torch.float64)
    uniforms = [min(row.rng.random(), _BELOW_ONE) for row in rows]
    targets_R1 = torch.tensor(uniforms, dtype=torch.float64, device=logits_RV.device)[:, None] * cumulative_RV[:, -1:]
    tokens_R1 = torch.searchsorted(cumulative_RV, targets_R1, right=True).clamp_max_(logits_RV.shape[-1] - 1)
    chosen_R1 = logprobs_RV.gather(1, tokens_R1)
    chosen_R1 = torch.where(cumulative_RV[:, -1:] > 0, chosen_R1, math.nan)  # nothing to draw from; false of NaN, too
    sets = {index: _left(probabilities_RV[index], most) for index in truncated if (most := rows[index].ids_to_tell)}
    return Samples(tokens_R1[:, 0].tolist(), chosen_R1[:, 0].tolist(), _tops(logprobs_RV, rows), sets)


def _is_narrowed(row: Sampled) -> bool:
    """Return whether a row samples from less than all ids, or tells more than the one that it samples."""
    return row.mask is not None or bool(row.top_logprobs or untrainable(row.sampling))


def _left(probabilities_V: Tensor, most: int) -> tuple[int, ...]:
    return tuple(probabilities_V.nonzero()[:most, 0].tolist())


def _allowed(logits_RV: Tensor, rows: Sequence[Sampled]) -> Tensor:
    """Return the logits, minus infinity where a row's grammar does not allow the id."""
    masked = [index for index, row in enumerate(rows) if row.mask is not None]
    if not masked:
        return logits_RV
    vocabulary = logits_RV.shape[-1]
    logits_RV = logits_RV.clone()
    for index in masked:
        mask_P = rows[index].mask
        assert mask_P is not None
        bits_V = np.unpackbits(mask_P.view(np.uint8), bitorder="little", count=vocabulary)
        logits_RV[index, torch.from_numpy(bits_V == 0).to(logits_RV.device)] = -math.inf
    return logits_RV


def _narrow(logits_RV: Tensor, rows: Sequence[Sampled]) -> Tensor:
    """Return the probabilities that rows sample from, truncated in turn by top-k, top-p, min-p."""
    logits_RV = logits_RV.clone()
    for logits_V, row in zip(logits_RV, rows, strict=True):
        _shift(logits_V, row)
    temperatures = torch.tensor([row.sampling.temperature or 1.0 for row in rows], device=logits_RV.device)
    ordered_RV, order_RV = (logits_RV / temperatures[:, None]).softmax(-1).sort(dim=-1, descending=True, stable=True)
    for ordered_V, row in zip(ordered_RV, rows, strict=True):
        _truncate(ordered_V, row.sampling)
    return torch.zeros_like(ordered_RV).scatter_(1, order_RV, ordered_RV)


def _shift(logits_V: Tensor, row: Sampled) -> None:
    sampling = row.sampling
    if sampling.logit_bias:
        logits_V[list(sampling.logit_bias)] += logits_V.new_tensor(list(sampling.logit_bias.values()))
    if row.output and (sampling.frequency_penalty or sampling.presence_penalty):
        counts = Counter(row.output)
        penalties = [sampling.frequency_penalty * count + sampling.presence_penalty for count in counts.values()]
        logits_V[list(counts)] -= logits_V.new_tensor(penalties)


def _truncate(ordered_V: Tensor, sampling: Sampling) -> None:
    """Zero what is cut off; at least the likeliest stays. `ordered_V` is descending."""
    if sampling.temperature == 0:
        ordered_V[1:] = 0
    if sampling.top_k is not None:
        ordered_V[sampling.top_k :] = 0
    if sampling.top_p < 1:
        before_V = ordered_V.cumsum(0) - ordered_V
        beyond_V = before_V >= sampling.top_p * ordered_V.sum()
        beyond_V[0] = False  # also where the product is none that float32 can tell from 0
        ordered_V[beyond_V] = 0
    if sampling.min_p:
        ordered_V[ordered_V < sampling.min_p * ordered_V[0].clone()] = 0


def _tops(logprobs_RV: Tensor, rows: Sequence[Sampled]) -> dict[int, tuple[tuple[int, float], ...]]:
    asking = [index for index, row in enumerate(rows) if row.top_logprobs]
    if not asking:
        return {}
    most = min(max(rows[index].top_logprobs for index in asking), logprobs_RV.shape[-1])
    values, tokens = logprobs_RV[asking].topk(most)
    return {
        index: tuple(
            [pair for pair in zip(token_ids[: rows[index].top_logprobs], logprobs, strict=False) if pair[1] > -math.inf]
        )
        for index, token_ids, logprobs in zip(asking, tokens.tolist(), values.tolist(), strict=True)
    }
