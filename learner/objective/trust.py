"""Trust in users, by how their feedback agrees with what the value head expects.

The value head has learned from everybody what answers like this one are worth. A user whose feedback mostly agrees with
it is trusted; one whose feedback keeps contradicting it either lies or has a taste that nobody shares. Trust is
computed as in the annotator models of Dawid and Skene (Applied Statistics 28(1), 1979) and Raykar et al. (JMLR 11,
2010), with the value head in place of the truth: by the odds that the user agrees as often as the others do, rather
than as often as they disagree. While the head knows nothing, everybody agrees with it by chance, and is trusted."""

import math
from collections.abc import Sequence
from typing import Any

_PRIOR = math.log(19)  # odds that a user is honest of whom nothing is known
_KEPT = 0.99  # of a user's agreement, from one turn to the next: people change
_CLIP = 3.0  # of one turn's agreement
_RATE = 0.1  # of what users in general agree by
_LEAST = 0.01
_USERS = 100_000  # remembered; who was silent longest is forgotten first

Said = tuple[str, float, float, float]  # user, reward, what was expected, influence


class Trust:
    def __init__(self) -> None:
        self._agreed: dict[str, float] = {}  # by user: sum of agreements, the latest user last
        self._usual = 0.0  # agreement of a turn

    def of(self, user: str) -> float:
        """Return how likely the user is honest, relative to a stranger: from `_LEAST` to 1, and 1 when likelier."""
        odds = _PRIOR + 2 * max(self._usual, 0.0) * self._agreed.get(user, 0.0)
        return max(_LEAST, min(1.0, _logistic(odds) / _logistic(_PRIOR)))

    def hear(self, said: Sequence[Said]) -> None:
        """Learn from the turns of an update.

        Agreement is reward times expected reward, both in standard deviations from the update's weighted mean."""
        if not said:
            return
        weights = [weight for _, _, _, weight in said]
        rewards = _standard([reward for _, reward, _, _ in said], weights)
        expected = _standard([value for _, _, value, _ in said], weights)
        agreed = [max(-_CLIP, min(_CLIP, a * b)) for a, b in zip(rewards, expected, strict=True)]
        usual = math.fsum(a * w for a, w in zip(agreed, weights, strict=True)) / math.fsum(weights)
        self._usual += _RATE * (usual - self._usual)
        for (user, _, _, _), agreement in zip(said, agreed, strict=True):
            self._agreed[user] = _KEPT * self._agreed.pop(user, 0.0) + agreement
        for user in list(self._agreed)[: max(0, len(self._agreed) - _USERS)]:
            del self._agreed[user]

    def state_dict(self) -> dict[str, Any]:
        return {"agreed": dict(self._agreed), "usual": self._usual}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._agreed, self._usual = dict(state["agreed"]), state["usual"]


def _logistic(odds: float) -> float:
    return 1 / (1 + math.exp(-odds))


def _standard(values: Sequence[float], weights: Sequence[float]) -> list[float]:
    """Return the values in standard deviations from the weighted mean; all 0 when they are equal."""
    whole = math.fsum(weights)
    mean = math.fsum(v * w for v, w in zip(values, weights, strict=True)) / whole
    spread = math.sqrt(math.fsum(w * (v - mean) ** 2 for v, w in zip(values, weights, strict=True)) / whole)
    return [(value - mean) / spread if spread else 0.0 for value in values]
