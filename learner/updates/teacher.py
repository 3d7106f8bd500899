"""The teacher: a moving mean of the policy's weights, which thinks answers over with users' words before it.

A policy that taught itself by its newest weights would follow its own words ever further; the mean lags behind, and
what it says moves slowly (the teacher of SDPO, arXiv:2601.20802). It is part of a checkpoint."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn


@dataclass
class Teacher:
    """The mean of each parameter that trains, in the order of the policy's."""

    weights: list[Tensor]

    @classmethod
    def of(cls, parameters: Sequence[nn.Parameter]) -> "Teacher":
        return cls([parameter.detach().clone() for parameter in parameters])

    @torch.no_grad()
    def follow(self, parameters: Sequence[nn.Parameter], decay: float) -> None:
        for mean, parameter in zip(self.weights, parameters, strict=True):
            mean.lerp_(parameter, 1 - decay)

    @contextmanager
    def instead(self, parameters: Sequence[nn.Parameter]) -> Iterator[None]:
        """Let the policy compute with the teacher's weights; afterwards it has its own again, to the bit."""
        own = [parameter.detach().clone() for parameter in parameters]
        try:
            self._put(self.weights, parameters)
            yield
        finally:
            self._put(own, parameters)

    @staticmethod
    @torch.no_grad()
    def _put(weights: Sequence[Tensor], parameters: Sequence[nn.Parameter]) -> None:
        for weight, parameter in zip(weights, parameters, strict=True):
            parameter.copy_(weight)
