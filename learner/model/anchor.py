"""The anchor: the model that the KL term holds the policy near. Updates never change it.

Where adapters train, the policy's own base is the given model, and so the anchor: its adapters are off while the anchor
computes, or those of a later version stand in their place. Else the anchor is a model apart, frozen, in the precision
of its files; it is loaded when it first computes, and so never where nothing is held near it."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

from torch import Tensor

from learner.model import lora
from learner.model.policy_model import PolicyModel
from learner.sequences.tensors import MicroBatch

Make = Callable[..., PolicyModel]
LowRanks = Mapping[str, tuple[Tensor, Tensor]]


class Anchor:
    def __init__(self, policy: PolicyModel, make: Make) -> None:
        """Hold to the given model. `make` makes a frozen one of given or other weights, as the policy was made."""
        self._policy, self._make = policy, make
        self._shards: Sequence[Path] = ()
        self._adapter: Mapping[str, Tensor] | None = None
        self._merged: tuple[LowRanks, float] | None = None
        self._apart: PolicyModel | None = None

    @property
    def is_given(self) -> bool:
        return not self._shards and self._adapter is None and self._merged is None

    @property
    def base_digest(self) -> str:
        return self._policy.base_digest

    def evaluate(
        self, batch: MicroBatch, precision: AbstractContextManager[object] | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return (hidden_ND, logprobs_N, entropy_N), as the policy does."""
        if not self._is_in_policy:
            return self.apart().evaluate(batch, precision)
        self._apart = None
        with lora.instead(self._policy.model, self._adapter):
            return self._policy.evaluate(batch, precision)

    @property
    def _is_in_policy(self) -> bool:
        return self._policy.has_adapters and self._policy.is_given and not self._shards and self._merged is None

    def apart(self) -> PolicyModel:
        """Return the anchor as a model of its own, and load it where it is not."""
        if self._apart is None:
            self._apart = self._make(weights=self._shards)
            self._apart.model.requires_grad_(False)
            if self._adapter is not None:
                self._apart.load_adapter(self._adapter)
            if self._merged is not None:
                self._apart.load_merged(*self._merged)
        return self._apart

    def load(self, shards: Sequence[Path]) -> None:
        """Hold to published weights. Raises WeightsError naming the file or the tensors that do not fit."""
        self._move(shards, None)
        self.apart()

    def load_given(self) -> None:
        """Hold to the given model."""
        self._move((), None)

    def load_adapter(self, tensors: Mapping[str, Tensor]) -> None:
        """Hold to a published adapter upon the given model. Raises WeightsError naming what does not fit."""
        self._policy.check_adapter(tensors)
        self._move((), {name: tensor.to(self._policy.device) for name, tensor in tensors.items()})

    def load_merged(self, low_ranks: LowRanks, scale: float) -> None:
        """Hold to the given model with A and B added to it, by the name of the weight that they change.

        Raises WeightsError naming what does not fit."""
        self._move((), None, (low_ranks, scale))
        self.apart()

    def _move(
        self,
        shards: Sequence[Path],
        adapter: Mapping[str, Tensor] | None,
        merged: tuple[LowRanks, float] | None = None,
    ) -> None:
        self._shards, self._adapter, self._merged, self._apart = tuple(shards), adapter, merged, None
