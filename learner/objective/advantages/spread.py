"""The spread of rewards, in a batch and over the last updates.

A batch's own spread is not enough to scale a value head's errors: in a small batch whose answers are nearly all
accepted it is small or zero by chance, and would turn the head's small errors into large advantages. The spread of the
last updates is not enough either, since it lags as answers become better. So the scale is the batch's spread, but at
least half of that of the last updates."""

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from learner.objective.advantages.base import MIN_SCALE
from learner.objective.advantages.sources import own_scale, rewarded, sources_of
from learner.sequences.scored import ScoredTurn

_KEPT = 0.95  # from one update to the next: of the last twenty or so
_LEAST_SHARE = 0.5  # of their spread, that a batch's scale has


class _Moments(NamedTuple):
    weight: float = 0.0
    squares: float = 0.0  # of weights
    mean: float = 0.0
    deviation: float = 0.0  # weighted sum of squares


class Spread:
    """Standard deviations by source, weighted by influence: `look` at a batch, `end` it once it was learned from."""

    def __init__(self) -> None:
        self._before: dict[str, _Moments] = {}
        self._now: dict[str, _Moments] = {}

    def look(self, batch: Sequence[ScoredTurn], rewards_M: Tensor, influence_M: Tensor | None) -> list[float]:
        """Return each turn's scale: its source's, at least MIN_SCALE, or its own where that says nothing."""
        values = rewards_M.double().cpu()
        weights = torch.ones_like(values) if influence_M is None else influence_M.double().cpu()
        self._now = dict(self._before)
        scales = [0.0] * len(batch)
        for places in sources_of(batch):
            told = rewarded(batch, places)
            source = Counter(batch[place].turn.environment for place in places).most_common(1)[0][0]
            newest = _moments(values[told], weights[told])
            lately = self._now[source] = _joined(self._before.get(source, _Moments()), newest)
            scale = max(_deviation(newest), _LEAST_SHARE * _deviation(lately), MIN_SCALE)
            for place in places:
                scales[place] = own_scale(batch[place], scale)
        return scales

    def end(self) -> None:
        for source, now in self._now.items():
            self._before[source] = _Moments(_KEPT * now.weight, _KEPT**2 * now.squares, now.mean, _KEPT * now.deviation)

    def state_dict(self) -> dict[str, Any]:
        return {source: moments._asdict() for source, moments in self._before.items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._before = {source: _Moments(**moments) for source, moments in state.items()}


def _moments(values: Tensor, weights: Tensor) -> _Moments:
    whole = float(weights.sum())
    if not whole:
        return _Moments()
    mean = float((weights * values).sum()) / whole
    return _Moments(whole, float((weights**2).sum()), mean, float((weights * (values - mean) ** 2).sum()))


def _deviation(moments: _Moments) -> float:
    freedom = moments.weight - moments.squares / moments.weight if moments.weight else 0.0
    return math.sqrt(moments.deviation / freedom) if freedom > 0 else 0.0


def _joined(one: _Moments, other: _Moments) -> _Moments:
    whole = one.weight + other.weight
    if not whole:
        return one
    apart = other.mean - one.mean
    return _Moments(
        whole,
        one.squares + other.squares,
        one.mean + apart * other.weight / whole,
        one.deviation + other.deviation + apart**2 * one.weight * other.weight / whole,
    )
