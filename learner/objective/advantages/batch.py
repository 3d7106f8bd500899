"""The batch's own mean as the baseline, without state: A = R - mean(R).

Whitened, it is divided by the standard deviation (REINFORCE++, arXiv:2501.03262); without the division it is what Dr.
GRPO does for groups (arXiv:2503.20783).

Legend: M turns of the batch."""

from collections.abc import Sequence

import torch
from torch import Tensor

from learner.objective.advantages.base import TurnBaseline
from learner.objective.advantages.sources import whitened_apart
from learner.sequences.scored import ScoredTurn


class BatchBaseline(TurnBaseline):
    def __init__(self, *, whiten: bool) -> None:
        super().__init__()
        self._whiten = whiten

    def begin(self, batch: Sequence[ScoredTurn], rewards_M: Tensor, influence: Sequence[float] = ()) -> None:
        self._baselines_M, scales = whitened_apart(batch, rewards_M, torch.zeros(len(rewards_M)))
        self.scales = scales if self._whiten else [1.0] * len(batch)
