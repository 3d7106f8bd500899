"""Users who take an answer at once, and out again within the hour where it was not what they needed.

A request is a context, an answer two tokens, as in `bench.learning.feedback_world`: by the first token and the second
an answer is accepted; by the second it lasts. In a third of the contexts another second token pleases at first than
lasts, so that who hears only of acceptance learns what does not last."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product

import numpy as np

from bench.learning.feedback_world import ANSWER, CHOICES, CONTEXTS, Stream, Users

DECEIVED = 1 / 3
LASTS, FAILS = 0.9, 0.2  # of accepted answers that are still there after an hour: the second token is right; is not
FLIPPED = 0.1  # of verdicts that say the contrary


@dataclass(frozen=True)
class Known:
    """When a reward is known, in steps after the turn.

    `verdict_steps`: by acceptance; `survival_steps`: whether the answer lasts; None: never. A reward by the verdict
    alone is corrected by a revision when an accepted answer did not last."""

    verdict_steps: float | None
    survival_steps: float | None


class SurvivalUsers(Users):
    """Users whose answers have to be accepted and to last."""

    def __init__(self, seed: int) -> None:
        super().__init__(Stream(flipped=FLIPPED), seed)
        others = (self._second + self._rng.integers(1, CHOICES, size=self._second.shape)) % CHOICES
        deceived = self._rng.permutation(CONTEXTS) < round(DECEIVED * CONTEXTS)
        self._lasting = np.where(deceived[:, None], others, self._second)

    def lasts(self, context: int, answer: Sequence[int]) -> float:
        """Return the probability that the answer lasts, once it is accepted."""
        return LASTS if answer[1] == self._lasting[context][answer[0]] else FAILS

    @cached_property
    def missed(self) -> np.ndarray:
        """By how much likelier the best answer is accepted and lasts: [CONTEXTS, CHOICES, CHOICES]."""
        pleases = np.empty((CONTEXTS, *(CHOICES,) * ANSWER))
        for context, *answer in product(range(CONTEXTS), *(range(CHOICES),) * ANSWER):
            pleases[context, *answer] = self.accepts(context, answer) * self.lasts(context, answer)
        return pleases.max((1, 2), keepdims=True) - pleases

    def verdicts(self, asked: Sequence[int], answers: Sequence[Sequence[int]]) -> tuple[np.ndarray, np.ndarray]:
        """Draw (accepted, lasts) of each answer; the luck is the same whatever was answered."""
        luck = self._rng.random((len(asked), 3))
        accepts = np.array([self.accepts(context, answer) for context, answer in zip(asked, answers, strict=True)])
        lasts = np.array([self.lasts(context, answer) for context, answer in zip(asked, answers, strict=True)])
        return (luck[:, 0] < accepts) != (luck[:, 1] < FLIPPED), luck[:, 2] < lasts
