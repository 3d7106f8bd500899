"""No baseline: A = R.

Group trainers silently do this with one sample a prompt. It is the worst choice, and is here for comparison.

Legend: M turns of the batch."""

from collections.abc import Sequence

import torch
from torch import Tensor

from learner.objective.advantages.base import TurnBaseline
from learner.sequences.scored import ScoredTurn


class RawReward(TurnBaseline):
    def begin(self, batch: Sequence[ScoredTurn], rewards_M: Tensor, influence: Sequence[float] = ()) -> None:
        self._baselines_M = torch.zeros_like(rewards_M)
        self.scales = [1.0] * len(batch)
