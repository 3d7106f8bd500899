"""No baseline: A = R. What group trainers silently do with one sample a prompt; the worst choice, here to be compared
with.

Legend: M turns of the batch.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from learner.objective.advantages.base import TurnBaseline
from learner.sequences.scored import ScoredTurn


class RawReward(TurnBaseline):
    def begin(self, batch: Sequence[ScoredTurn], rewards_M: Tensor, influence: Sequence[float] = ()) -> None:
        self._baselines_M = torch.zeros_like(rewards_M)
