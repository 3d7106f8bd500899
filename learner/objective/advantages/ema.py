"""A moving average of the reward per stratum: prime-rl's RAE, arXiv:2506.24119.

A = R - b of the stratum, with b read before the batch updates it, then whitened over the batch.

Legend: M turns of the batch.
"""

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from learner.objective.advantages.base import TurnBaseline
from learner.objective.advantages.sources import mean_reward, whitened_apart
from learner.objective.advantages.strata import Channels, StratumAverages
from learner.sequences.scored import ScoredTurn


class EmaBaseline(TurnBaseline):
    def __init__(self, decay: float, channels: Channels | None = None) -> None:
        super().__init__()
        self._strata = StratumAverages(decay, channels)

    def begin(self, batch: Sequence[ScoredTurn], rewards_M: Tensor, influence: Sequence[float] = ()) -> None:
        self._batch = batch
        raw_M = self._strata.read(batch, prior=mean_reward(batch, rewards_M))
        self._baselines_M, self.scales = whitened_apart(batch, rewards_M, raw_M)

    def end(self, shifts_M: Tensor) -> None:
        self._strata.learn(self._batch)

    def state_dict(self) -> dict[str, Any]:
        return {"averages": dict(self._strata.averages)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._strata.averages = dict(state["averages"])
