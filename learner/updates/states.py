"""The states of all policies that a process trains. Those of adapters share one model, and take turns in it.

The weights of the base are in memory once, however many adapters learn upon them. One policy at a time is present:
its A and B are the model's own; those of the others are kept aside, with the random state that each goes on with, so
that nothing of one's updates depends on what others do in between. Policies whose whole weights train have a model
each."""

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from core.ids import PolicyName
from core.settings import LearnerSettings
from learner.model.policy_model import PolicyModel
from learner.model.ranks import Ranks, local
from learner.updates.state import LearnerState, make_state


@dataclass(frozen=True)
class _Aside:
    """What a policy has in the model while another is present. `base`: other weights than the given ones, if any."""

    random: Tensor
    adapter: tuple[Tensor, ...]
    base: dict[str, Tensor] | None

    @classmethod
    def of(cls, state: LearnerState, *, is_sharing: bool) -> "_Aside":
        random = torch.get_rng_state()
        if not is_sharing:
            return cls(random, (), None)
        adapter = tuple(local(parameter.detach()).clone() for parameter in state.policy.parameters())
        return cls(random, adapter, state.policy.other_base())

    @torch.no_grad()
    def put_back(self, state: LearnerState) -> None:
        torch.set_rng_state(self.random)
        if not self.adapter:
            return
        state.policy.take_base(self.base)
        for parameter, tensor in zip(state.policy.parameters(), self.adapter, strict=True):
            local(parameter).copy_(tensor)


class States:
    """The states of one process's policies; not thread-safe."""

    def __init__(self, model: Path, ranks: Ranks) -> None:
        self.model, self.ranks = model, ranks
        self._states: dict[PolicyName, LearnerState] = {}
        self._aside: dict[PolicyName, _Aside] = {}
        self._present: PolicyName | None = None
        self._shared: PolicyModel | None = None
        self._shared_by: tuple[object, ...] = ()

    def make(self, name: PolicyName, settings: LearnerSettings) -> None:
        """Make a policy's state with the given model and nothing learned, in the place of one before."""
        self._put_aside()
        self._states.pop(name, None)  # before there is another
        self._aside.pop(name, None)
        shared = self._shared if self._shared_by == _suits(settings) else None
        state = make_state(self.model, settings, self.ranks, name, shared)
        if state.policy.has_adapters and self._shared is None:
            self._shared, self._shared_by = state.policy, _suits(settings)
        self._states[name], self._present = state, name

    def turn_to(self, name: PolicyName) -> LearnerState:
        """Return a policy's state, whose weights are in its model from now on."""
        if name != self._present:
            self._put_aside()
            if (aside := self._aside.pop(name, None)) is not None:
                aside.put_back(self._states[name])
            self._present = name
        return self._states[name]

    def peek(self, name: PolicyName) -> LearnerState:
        """Return a policy's state as it is, to look at what belongs to it alone."""
        return self._states[name]

    def is_given(self, name: PolicyName) -> bool:
        """Return whether a policy's adapters stand beside the given weights, or it has none and has the given ones."""
        aside = self._aside.get(name)
        return self._states[name].policy.is_given if aside is None or not aside.adapter else aside.base is None

    def _put_aside(self) -> None:
        name, self._present = self._present, None
        if name is not None and name in self._states:
            state = self._states[name]
            state.optimizer.zero_grad(set_to_none=True)  # what an error left there is nobody else's
            self._aside[name] = _Aside.of(state, is_sharing=state.policy is self._shared)


def _suits(settings: LearnerSettings) -> tuple[object, ...]:
    """Return what of the settings a model is made by; () for one that nobody else can use."""
    if not settings.lora.rank:
        return ()
    return settings.lora, settings.device, settings.compute.gradient_checkpointing
