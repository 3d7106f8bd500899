"""The interface of baselines.

Legend: N sampled tokens of a micro-batch, M turns of the batch, D hidden size."""

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from learner.objective.credit import TokenCredit
from learner.sequences.scored import ScoredTurn

MIN_SCALE = 0.05  # rewards may all be alike


class Advantages(Protocol):
    """A baseline; one batch at a time: `begin`, `tokens` for each micro-batch, `end`.

    State is part of the checkpoint."""

    def begin(self, batch: Sequence[ScoredTurn], rewards_M: Tensor, influence: Sequence[float] = ()) -> None:
        """Read what the batch is compared with, before the batch changes it.

        `influence`: of each turn; 1 when empty."""
        ...

    @property
    def scales(self) -> Sequence[float]:
        """The numbers that the advantages of this batch are divided by, one for each turn."""
        ...

    def tokens(self, hidden_ND: Tensor, credit: TokenCredit) -> tuple[Tensor, Tensor]:
        """Return (baseline_N, loss of the baseline's own fit, a scalar to be added and differentiated)."""
        ...

    def parameters(self) -> list[nn.Parameter]:
        """Return the parameters that its fit trains; each of several processes holds them in full."""
        ...

    def end(self, shifts_M: Tensor) -> None:
        """Learn from the batch.

        `shifts_M`: how far the policy has moved since each turn was sampled, as the mean absolute difference of its
        tokens' log-probabilities."""
        ...

    def discard(self) -> None:
        """Forget the gradients of the batch so far: it is computed again, or teaches nothing."""
        ...

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


class TurnBaseline:
    """A baseline that is one number a turn and has nothing to fit; stateless unless a subclass adds state."""

    def __init__(self) -> None:
        self.scales: Sequence[float] = ()
        self._batch: Sequence[ScoredTurn] = ()
        self._baselines_M = torch.zeros(0)

    def tokens(self, hidden_ND: Tensor, credit: TokenCredit) -> tuple[Tensor, Tensor]:
        return self._baselines_M[credit.turns_N], hidden_ND.new_zeros(())

    def parameters(self) -> list[nn.Parameter]:
        return []

    def end(self, shifts_M: Tensor) -> None:
        pass

    def discard(self) -> None:
        pass

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass


def whitened(rewards_M: Tensor, raw_M: Tensor, moved_M: Tensor) -> tuple[Tensor, float]:
    """Return (baselines_M, scale) for advantages of mean 0 and standard deviation 1 over the batch.

    The baselines are `raw_M` shifted (REINFORCE++, arXiv:2501.03262). `moved_M`: by how much the mean of a turn's
    tokens differs from the turn's reward."""
    differences_M = rewards_M.cpu() - raw_M
    scale = max(float(differences_M.std()), MIN_SCALE) if len(differences_M) > 1 else MIN_SCALE
    shift = (differences_M + moved_M.cpu()).mean()
    return (raw_M + shift).to(rewards_M.device), scale
