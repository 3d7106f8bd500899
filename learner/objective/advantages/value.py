"""A value head: the expected reward, read from the hidden state that predicts each token.

It is PPO's critic (arXiv:1707.06347) on a detached trunk. A = (R - V(h_t)) / std(R), and std(R) has a
floor that follows the last updates (`learner.objective.advantages.spread`); it is fitted to R.

Legend: N sampled tokens of a micro-batch, M turns of the batch, D hidden size."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from learner.objective.advantages.spread import Spread
from learner.objective.credit import TokenCredit
from learner.sequences.scored import ScoredTurn

_WIDTH = 64


class ValueHead:
    def __init__(self, hidden_size: int, learning_rate: float, seed: int, device: str) -> None:
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            self._head = nn.Sequential(nn.Linear(hidden_size, _WIDTH), nn.GELU(), nn.Linear(_WIDTH, 1)).to(device)
        nn.init.zeros_(self._head[2].weight)
        self._optimizer = torch.optim.AdamW(self._head.parameters(), lr=learning_rate, foreach=True)
        self._spread = Spread()
        self.scales: Sequence[float] = ()
        self._influence_M: Tensor | None = None  # all alike

    def begin(self, batch: Sequence[ScoredTurn], rewards_M: Tensor, influence: Sequence[float] = ()) -> None:
        shares = influence or [1.0] * len(batch)
        heard = [0.0 if scored.reward.void else share for scored, share in zip(batch, shares, strict=True)]
        alike = all(weight == 1 for weight in heard)
        self._influence_M = None if alike else torch.tensor(heard, device=rewards_M.device)
        self.scales = self._spread.look(batch, rewards_M, self._influence_M)

    def tokens(self, hidden_ND: Tensor, credit: TokenCredit) -> tuple[Tensor, Tensor]:
        values_N = self._head(hidden_ND.detach())[:, 0]
        return values_N.detach(), self._fit(values_N, credit)

    def _fit(self, values_N: Tensor, credit: TokenCredit) -> Tensor:
        if self._influence_M is None:
            return nn.functional.mse_loss(values_N, credit.rewards_N)
        return (self._influence_M[credit.turns_N] * (values_N - credit.rewards_N) ** 2).mean()

    def parameters(self) -> list[nn.Parameter]:
        return list(self._head.parameters())

    def end(self, shifts_M: Tensor) -> None:
        self._spread.end()
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)

    def discard(self) -> None:
        self._optimizer.zero_grad(set_to_none=True)

    def state_dict(self) -> dict[str, Any]:
        return {
            "head": self._head.state_dict(),
            "optimizer": self._optimizer.state_dict(),
            "spread": self._spread.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._head.load_state_dict(state["head"])
        self._optimizer.load_state_dict(state["optimizer"])
        if "spread" in state:  # of builds before there was one
            self._spread.load_state_dict(state["spread"])
