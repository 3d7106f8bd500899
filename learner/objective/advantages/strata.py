"""Strata: turns that are compared with each other. A stratum is (namespace, workload, channel, environment).

A baseline may depend only on what is known before the answer is (Williams 1992): whatever it knows of the outcome it
removes from the advantage. So a channel is where a reward came from, never what it says: outcomes that replace each
other, such as `accepted` and `rejected`, share a channel. Outcomes without a channel share one too."""

from collections.abc import Mapping, Sequence
from typing import Final, TypeVar

import torch
from torch import Tensor

from learner.sequences.scored import ScoredTurn

T = TypeVar("T")
Channels = Mapping[str, Sequence[str]]
"""Outcomes by the channel that they come by."""
REMEMBERED: Final = 10_000
"""Strata of which something is known. Clients name workloads, and those that none speaks of any more go first."""


class Strata:
    def __init__(self, channels: Channels | None = None) -> None:
        self._channel_of = {outcome: name for name, outcomes in (channels or {}).items() for outcome in outcomes}

    def of(self, scored: ScoredTurn) -> str:
        spoke = {self._channel_of[name] for name in scored.reward.components if name in self._channel_of}
        simulated = "" if scored.turn.environment == "production" else f"|{scored.turn.environment}"
        return f"{scored.turn.namespace}|{scored.turn.workload}|{'+'.join(sorted(spoke))}{simulated}"


def remember(known: dict[str, T], stratum: str, value: T) -> None:
    """Keep what is known of a stratum, as that which was learned last, and forget the oldest beyond `REMEMBERED`."""
    known.pop(stratum, None)
    known[stratum] = value
    while len(known) > REMEMBERED:
        del known[next(iter(known))]


class StratumAverages:
    """A moving average of the reward per stratum: b <- decay * b + (1 - decay) * R, turn by turn."""

    def __init__(self, decay: float, channels: Channels | None = None) -> None:
        self._decay = decay
        self._strata = Strata(channels)
        self.averages: dict[str, float] = {}

    def read(self, batch: Sequence[ScoredTurn], prior: float) -> Tensor:
        """Return the current averages [M]; `prior` for strata that were never seen."""
        return torch.tensor([self.averages.get(self._strata.of(scored), prior) for scored in batch])

    def learn(self, batch: Sequence[ScoredTurn]) -> None:
        for scored in (each for each in batch if not each.reward.void):
            key, reward = self._strata.of(scored), scored.mean_worth
            before = self.averages.get(key, reward)
            remember(self.averages, key, self._decay * before + (1 - self._decay) * reward)
