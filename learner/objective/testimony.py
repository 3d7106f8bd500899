"""Testimony: whether answers that heed what users say turn out better than those that do not.

Words that find fault always agree with the outcome of the answer that they are about; whether what they ask for is any
better, only other answers show. So a few other turns of the batch are read with the words in their prompts, too. Where
words are right, those that they make likelier are those with the better rewards: the covariance of both is positive.
A namespace's words train once it is so beyond chance, and no longer than it is."""

import math
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any, Final

from core.events import Completion
from learner.sequences.scored import ScoredTurn

_KEPT: Final = 0.98  # of what is remembered, from one update with words to the next
_FEWEST: Final = 5.0  # updates, below which nothing is beyond chance


class Testimony:
    """What other turns said of words, by namespace. Part of what is published with a version."""

    def __init__(self) -> None:
        self._sums: dict[str, tuple[float, float, float]] = {}  # updates, their covariances, and the squares of these

    def hear(self, covariances: Mapping[str, float]) -> None:
        """Enter an update's mean covariance of each namespace."""
        for namespace, value in covariances.items():
            count, total, squares = self._sums.get(namespace, (0.0, 0.0, 0.0))
            self._sums[namespace] = (_KEPT * count + 1, _KEPT * total + value, _KEPT * squares + value * value)

    def errors_of(self, namespace: str) -> float:
        """Return by how many standard errors the covariance is above 0; 0 of too few updates."""
        count, total, squares = self._sums.get(namespace, (0.0, 0.0, 0.0))
        if count < _FEWEST:
            return 0.0
        mean = total / count
        spread = math.sqrt(max(squares / count - mean * mean, 0.0) / (count - 1))
        return mean / spread if spread > 0 else 0.0

    def state_dict(self) -> dict[str, Any]:
        return {namespace: list(sums) for namespace, sums in self._sums.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._sums = {namespace: (sums[0], sums[1], sums[2]) for namespace, sums in state.items()}


def witnesses_of(told: int, batch: Sequence[ScoredTurn], most: int) -> list[int]:
    """Return the turns that are read with the words of turn `told`: the next of its workload, of other sessions."""
    others = [*range(told + 1, len(batch)), *range(told)]
    said = (at for at in others if not batch[at].reward.void and _are_akin(batch[told].turn, batch[at].turn))
    return list(islice(said, most))


def _are_akin(some: Completion, other: Completion) -> bool:
    are_of_one = (some.namespace, some.workload) == (other.namespace, other.workload)
    return are_of_one and some.session_id != other.session_id


def covariance(heeds: Sequence[float], better: Sequence[float]) -> float:
    """Return the covariance of how much likelier words made each answer, and of by how much each was better."""
    mean = math.fsum(heeds) / len(heeds)
    centre = math.fsum(better) / len(better)
    products = ((heed - mean) * (good - centre) for heed, good in zip(heeds, better, strict=True))
    return math.fsum(products) / (len(heeds) - 1)
