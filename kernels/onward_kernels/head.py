"""The head that is scored, and the values that its passes over the vocabulary hand to each other.

Legend: N tokens, D hidden size, V vocabulary."""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from onward_kernels.sampling_mask import SamplingMask

# Below every logit, and finite: the logit of an id that is not allowed, whose exponential is 0 and harms no sum.
FLOOR = -1e30
# Its exponential is 0 at every precision, and no slope makes it overflow.
NOTHING = -1e4


@dataclass(frozen=True)
class Head:
    """Tokens, the output matrix, and the distribution over it: z = hidden weight^T / temperature, where allowed."""

    hidden_ND: Tensor
    weight_VD: Tensor
    targets_N: Tensor
    temperature_N: Tensor
    mask: SamplingMask | None

    @property
    def wide(self) -> torch.dtype:
        """The precision of the computation: float32, or float64 where the input has that."""
        given = torch.promote_types(self.hidden_ND.dtype, self.weight_VD.dtype)
        return torch.promote_types(given, torch.float32)

    def check(self) -> None:
        """Raise ValueError naming the first token that cannot be scored."""
        vocabulary = len(self.weight_VD)
        for what, wrong_N in (
            (
                f"target is outside the vocabulary of {vocabulary}",
                (self.targets_N < 0) | (self.targets_N >= vocabulary),
            ),
            ("temperature is not positive", ~(self.temperature_N > 0)),
        ):
            if wrong_N.any():
                raise ValueError(f"token {int(wrong_N.nonzero()[0, 0])}: its {what}")
        if self.mask is not None:
            self.mask.check(self.targets_N, vocabulary)


class Moments(NamedTuple):
    """Sums over the vocabulary, of e = exp(z - highest) and y = z - highest: no exponential overflows."""

    highest_N: Tensor
    total_N: Tensor  # sum e, at least 1 where any id is allowed
    product_N: Tensor  # sum e y
    target_N: Tensor  # z of the target


class Slopes(NamedTuple):
    """The gradient by the logits: e (level + slope y), and `target_N` more at the target."""

    level_N: Tensor
    slope_N: Tensor
    target_N: Tensor
