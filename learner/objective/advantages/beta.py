"""A decayed Beta tracker per stratum: SPO, arXiv:2509.13232.

Rewards are mapped onto 0 to 1, p = (R - low) / (high - low). Each stratum keeps a, the evidence for success, and b, the
evidence against it; the expected value is v = a / (a + b), read before the batch updates it:

    a <- rho * a + p        rho = 2^(-D / 0.06), within 0.875 to 0.96
    b <- rho * b + 1 - p    D: how far the policy has moved since the stratum's turns of the batch were sampled, the
                            mean absolute difference of their tokens' log-probabilities

So the further the policy has moved, the sooner the rewards of older policies are forgotten. A stratum begins with 1 /
(1 - 0.875) = 8 turns' worth of the batch's mean. A = R - (low + (high - low) * v), whitened over the batch. In the
tracker, and only there, a reward outside the range counts as the nearest end of it.

Legend: M turns of the batch."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from learner.objective.advantages.base import TurnBaseline
from learner.objective.advantages.sources import whitened_apart
from learner.objective.advantages.strata import Channels, Strata, remember
from learner.sequences.scored import ScoredTurn

_HALF_LIFE = 0.06  # of the evidence, in D
_LEAST, _MOST = 0.875, 0.96
_PRIOR_TURNS = 1 / (1 - _LEAST)


class BetaBaseline(TurnBaseline):
    def __init__(self, low: float, high: float, channels: Channels | None = None) -> None:
        super().__init__()
        self._strata = Strata(channels)
        self._low, self._width = low, high - low
        self._prior = 0.5
        self._evidence: dict[str, tuple[float, float]] = {}

    def begin(self, batch: Sequence[ScoredTurn], rewards_M: Tensor, influence: Sequence[float] = ()) -> None:
        self._batch = batch
        told = [self._mapped(scored) for scored in batch if not scored.reward.void]
        self._prior = sum(told) / len(told) if told else self._prior
        raw_M = torch.tensor([self._low + self._width * self._expected(self._strata.of(scored)) for scored in batch])
        self._baselines_M, self.scales = whitened_apart(batch, rewards_M, raw_M)

    def end(self, shifts_M: Tensor) -> None:
        shifts: dict[str, list[float]] = {}
        told = [(each, at) for each, at in zip(self._batch, shifts_M.tolist(), strict=True) if not each.reward.void]
        for scored, shift in told:
            shifts.setdefault(self._strata.of(scored), []).append(shift)
        kept = {key: decay(sum(values) / len(values)) for key, values in shifts.items()}
        for scored, _ in told:
            key, reward = self._strata.of(scored), self._mapped(scored)
            successes, failures = self._of(key)
            remember(self._evidence, key, (kept[key] * successes + reward, kept[key] * failures + 1 - reward))

    def _mapped(self, scored: ScoredTurn) -> float:
        return min(max((scored.mean_worth - self._low) / self._width, 0.0), 1.0)

    def _expected(self, key: str) -> float:
        successes, failures = self._of(key)
        return successes / (successes + failures)

    def _of(self, key: str) -> tuple[float, float]:
        return self._evidence.get(key, (_PRIOR_TURNS * self._prior, _PRIOR_TURNS * (1 - self._prior)))

    def state_dict(self) -> dict[str, Any]:
        return {"evidence": dict(self._evidence)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._evidence = dict(state["evidence"])


def decay(shift: float) -> float:
    """Return rho. A shift that is not finite counts as a large one."""
    if not math.isfinite(shift):
        return _LEAST
    return min(max(2 ** (-shift / _HALF_LIFE), _LEAST), _MOST)
