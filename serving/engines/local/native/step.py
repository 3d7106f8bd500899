"""A step of a Llama-shaped decoder, and its sampling, each in one call of `step.cpp`.

Used where each product is plain, on a processor, in float32; there the numbers are those of `LlamaForward` and
`sample`, to the bit."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from serving.engines.local.attention import Row, SlotCache
from serving.engines.local.native import library

NONE = torch.empty(0)
"""Stands for a weight that a model does not have."""


@dataclass(frozen=True)
class LayerWeights:
    """What a layer is computed with, in the order in which `step.cpp` reads it."""

    before: Tensor
    qkv: tuple[Tensor, Tensor]
    """A product's matrix and its bias, or NONE."""
    qk_norm: Tensor
    out: tuple[Tensor, Tensor]
    after: Tensor
    gate_up: tuple[Tensor, Tensor]
    down: tuple[Tensor, Tensor]
    epsilons: tuple[float, float, float]
    """Of the norms before and after attention, and of queries and keys."""
    scaling: float

    @property
    def tensors(self) -> list[Tensor]:
        return [self.before, *self.qkv, self.qk_norm, *self.out, self.after, *self.gate_up, *self.down]

    @property
    def numbers(self) -> list[float]:
        return [*self.epsilons, self.scaling]


class NativeStep:
    """One version's weights, as `step.cpp` takes them."""

    def __init__(self, shared: Sequence[Tensor], epsilon: float, layers: Sequence[LayerWeights]) -> None:
        """`shared`: the embedding, the last norm, the head's matrix and bias or NONE, cosines and sines."""
        self._weights = [*shared, *(tensor for layer in layers for tensor in layer.tensors)]
        self._numbers = [epsilon, *(number for layer in layers for number in layer.numbers)]

    @staticmethod
    def fits(like: Tensor) -> bool:
        """Return whether weights like this can be computed with here."""
        return like.device.type == "cpu" and like.dtype == torch.float32 and library.is_loaded()

    def __call__(self, rows: Sequence[Row], tokens: Sequence[int], cache: SlotCache, *, all_positions: bool) -> Tensor:
        """Logits [R, V] of each row's last token, or [N, V] of all."""
        places = [number for row in rows for number in (row.slot, row.start, row.end)]
        logits: Tensor = torch.ops.onward.step(
            tokens, places, self._weights, self._numbers, cache.keys_STKD, cache.values_STKD, all_positions
        )
        return logits


def draw(
    logits_RV: Tensor, temperatures: Sequence[float] | None, uniforms: Sequence[float]
) -> tuple[list[int], list[float]]:
    """Sample a token for each row from all ids; return the tokens and their log-probabilities."""
    token_ids, logprobs = torch.ops.onward.draw(logits_RV, temperatures or [], uniforms)
    return token_ids, logprobs
