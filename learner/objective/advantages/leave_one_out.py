"""Leave-one-out baselines: RLOO, arXiv:2402.14740.

Several answers to one request (`n`) are compared with each other: A = R - mean(R of the others of the group that are in
the batch), not divided by anything. A turn without others in the batch is compared with the moving average of its
stratum, never with nothing.

Legend: M turns of the batch."""

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from learner.objective.advantages.base import TurnBaseline
from learner.objective.advantages.sources import mean_reward
from learner.objective.advantages.strata import Channels, StratumAverages
from learner.sequences.scored import ScoredTurn


class LeaveOneOut(TurnBaseline):
    def __init__(self, decay: float, channels: Channels | None = None) -> None:
        super().__init__()
        self._strata = StratumAverages(decay, channels)

    def begin(self, batch: Sequence[ScoredTurn], rewards_M: Tensor, influence: Sequence[float] = ()) -> None:
        self._batch = batch
        baselines_M = self._strata.read(batch, prior=mean_reward(batch, rewards_M))
        groups: defaultdict[str, list[int]] = defaultdict(list)
        for index, scored in enumerate(batch):
            if not scored.reward.void:
                groups[scored.turn.group_id].append(index)
        rewards = rewards_M.tolist()
        for indices in groups.values():
            total = sum(rewards[index] for index in indices)
            for index in indices if len(indices) > 1 else ():
                baselines_M[index] = (total - rewards[index]) / (len(indices) - 1)
        self._baselines_M = baselines_M.to(rewards_M.device)
        self.scales = [1.0] * len(batch)

    def end(self, shifts_M: Tensor) -> None:
        self._strata.learn(self._batch)

    def state_dict(self) -> dict[str, Any]:
        return {"averages": dict(self._strata.averages)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._strata.averages = dict(state["averages"])
