"""What a baseline is asked for.

Legend: N sampled tokens of a micro-batch, M turns of the batch, D hidden size.
"""

from collections.abc import Sequence
from typing import Any, Protocol

from torch import Tensor

from learner.scored import ScoredTurn

MIN_SCALE = 0.05  # rewards of a batch may all be alike


class Advantages(Protocol):
    """One batch at a time: `begin`, `tokens` for each micro-batch, `end`. State is part of the checkpoint."""

    def begin(self, batch: Sequence[ScoredTurn], rewards_M: Tensor) -> None:
        """Read what the batch is compared with, before the batch changes it."""
        ...

    @property
    def scale(self) -> float:
        """What advantages of this batch are divided by."""
        ...

    def tokens(self, hidden_ND: Tensor, turns_N: Tensor) -> tuple[Tensor, Tensor]:
        """(baseline_N, loss of the baseline's own fit, a scalar to be added and differentiated)."""
        ...

    def end(self) -> None:
        """Learn from the batch."""
        ...

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


def batch_scale(rewards_M: Tensor) -> float:
    """The standard deviation of the batch's rewards, not below MIN_SCALE."""
    spread = float(rewards_M.std()) if len(rewards_M) > 1 else MIN_SCALE
    return max(spread, MIN_SCALE)
