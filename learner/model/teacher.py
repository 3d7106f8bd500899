"""The teacher: an average of the policy's own weights, which reads hints that the policy does not see.

It follows the policy slowly, so that words that moved the policy do not at once move the judge of its next answers. If
adapters train, only they are averaged."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn


class Teacher:
    """Each of several processes has its shard of each tensor, as of the policy's."""

    def __init__(self, trained: Sequence[nn.Parameter]) -> None:
        """Begin with the policy's weights."""
        self._trained = trained
        self.tensors: list[Tensor] = [parameter.detach().clone() for parameter in trained]

    @torch.no_grad()
    def follow(self, decay: float) -> None:
        """Take a step towards the policy: its weight is 1 - `decay`."""
        for tensor, parameter in zip(self.tensors, self._trained, strict=True):
            tensor.lerp_(parameter.detach(), 1 - decay)

    @contextmanager
    def in_place_of_policy(self) -> Iterator[None]:
        """Let the policy compute with the teacher's weights for a while, without a gradient."""
        with torch.no_grad():
            own = [parameter.detach().clone() for parameter in self._trained]
            self._put(self.tensors)
            try:
                yield
            finally:
                self._put(own)

    def _put(self, tensors: Sequence[Tensor]) -> None:
        for parameter, tensor in zip(self._trained, tensors, strict=True):
            parameter.copy_(tensor)
