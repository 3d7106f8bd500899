"""Strata: turns that are compared with each other. A stratum is (namespace, workload, channel)."""

from collections.abc import Sequence

import torch
from torch import Tensor

from learner.scored import ScoredTurn


def stratum(scored: ScoredTurn) -> str:
    """The channel is what the reward was made of: thumbs and test runs have other base rates."""
    channel = "+".join(sorted(scored.reward.components)) or "default"
    return f"{scored.turn.namespace}|{scored.turn.workload}|{channel}"


class StratumAverages:
    """A moving average of the reward per stratum: b <- decay * b + (1 - decay) * R, turn by turn."""

    def __init__(self, decay: float) -> None:
        self._decay = decay
        self.averages: dict[str, float] = {}

    def read(self, batch: Sequence[ScoredTurn], prior: float) -> Tensor:
        """[M], as it stands; `prior` for strata never met."""
        return torch.tensor([self.averages.get(stratum(scored), prior) for scored in batch])

    def learn(self, batch: Sequence[ScoredTurn]) -> None:
        for scored in batch:
            key, reward = stratum(scored), scored.worth
            before = self.averages.get(key, reward)
            self.averages[key] = self._decay * before + (1 - self._decay) * reward
