"""A moving average of the reward per stratum (namespace, workload, channel): prime-rl's RAE, arXiv:2506.24119.

A = R - b of the stratum, with b read before the batch updates it, then divided by the batch's standard deviation and
centred (REINFORCE++, arXiv:2501.03262).

Legend: N sampled tokens of a micro-batch, M turns of the batch.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from learner.advantages.base import batch_scale
from learner.scored import ScoredTurn


def stratum(scored: ScoredTurn) -> str:
    """The channel is what the reward was made of: thumbs and test runs have other base rates."""
    channel = "+".join(sorted(scored.reward.components)) or "default"
    return f"{scored.turn.namespace}|{scored.turn.workload}|{channel}"


class EmaBaseline:
    def __init__(self, decay: float) -> None:
        self._decay = decay
        self._averages: dict[str, float] = {}
        self._batch: Sequence[ScoredTurn] = ()
        self._baselines_M = torch.zeros(0)
        self.scale = 1.0

    def begin(self, batch: Sequence[ScoredTurn], rewards_M: Tensor) -> None:
        self._batch = batch
        prior = float(rewards_M.mean())
        raw_M = torch.tensor([self._averages.get(stratum(scored), prior) for scored in batch])
        differences_M = rewards_M.cpu() - raw_M
        self.scale = batch_scale(differences_M)
        self._baselines_M = (raw_M + differences_M.mean()).to(rewards_M.device)  # centred over the batch

    def tokens(self, hidden_ND: Tensor, turns_N: Tensor) -> tuple[Tensor, Tensor]:
        return self._baselines_M[turns_N], hidden_ND.new_zeros(())

    def end(self) -> None:
        for scored in self._batch:
            key, reward = stratum(scored), scored.reward.value
            before = self._averages.get(key, reward)
            self._averages[key] = self._decay * before + (1 - self._decay) * reward

    def state_dict(self) -> dict[str, Any]:
        return {"averages": dict(self._averages)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._averages = dict(state["averages"])
