"""Seeded users whose feedback resembles production's: one answer a request, noisy, late, lopsided, drifting.

A request is a context of a workload; an answer is two tokens. How likely a user accepts it depends on the context
(some please whatever is said, some hardly ever), on the first token, and on the second given the first. Sessions may
have several turns, whose prompts start with all that was said before."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

WORKLOADS, CONTEXTS_EACH, CHOICES = 4, 3, 3
CONTEXTS = WORKLOADS * CONTEXTS_EACH
ANSWER = 2  # tokens; their ids follow those of the contexts
FIRST, SECOND = 0.3, 0.3  # by how much each right token makes an answer likelier to be accepted
MIDDLE = 0.3  # of what contexts are accepted at, whatever is said
ACCEPTED, REJECTED = 1.0, -0.5

Array = np.ndarray


@dataclass(frozen=True)
class Stream:
    """The options of a stream of users.

    `flipped`: share of feedback that says the contrary. `delay_steps`: mean, exponential; one step is one update of
    the learner. `drifts_every`: steps, after which a third of the contexts want something else. `skew`: exponent of
    the workloads' shares. `spread`: of the probabilities at which contexts are accepted whatever is said. `turns`:
    most of a session, each of which is then rewarded with the mean of all. All feedback of the last `late_workloads`
    arrives `late_steps` later, as that of a tool would which looks at what became of an edit."""

    flipped: float = 0.1
    delay_steps: float = 0.0
    drifts_every: int | None = None
    skew: float = 0.0
    spread: float = 0.25
    turns: int = 1
    late_workloads: int = 0
    late_steps: float = math.inf


PLAIN = Stream()
STREAMS = {
    "plain": PLAIN,
    "noise": replace(PLAIN, flipped=0.3),
    "delay": replace(PLAIN, delay_steps=6.0),
    "drift": replace(PLAIN, drifts_every=60),
    "imbalance": replace(PLAIN, skew=1.5, spread=0.45),
    "sessions": replace(PLAIN, turns=3),
    "production": Stream(flipped=0.2, delay_steps=3.0, drifts_every=120, skew=1.0, spread=0.4, turns=3),
}


class Users:
    """The users of a stream: the same seed asks the same and draws the same luck, whichever policy answers."""

    def __init__(self, stream: Stream, seed: int) -> None:
        self._stream = stream
        self._rng = np.random.default_rng((2, seed))
        shares = (1.0 + np.arange(WORKLOADS)) ** -stream.skew
        self._shares = np.repeat(shares / shares.sum() / CONTEXTS_EACH, CONTEXTS_EACH)
        self._base = self._rng.uniform(MIDDLE - stream.spread, MIDDLE + stream.spread, CONTEXTS)
        self._first = self._rng.integers(CHOICES, size=CONTEXTS)
        self._second = self._rng.integers(CHOICES, size=(CONTEXTS, CHOICES))

    def drift(self) -> None:
        for context in self._rng.choice(CONTEXTS, CONTEXTS // 3, replace=False):
            self._base[context] = self._rng.uniform(MIDDLE - self._stream.spread, MIDDLE + self._stream.spread)
            self._first[context] = self._rng.integers(CHOICES)
            self._second[context] = self._rng.integers(CHOICES, size=CHOICES)

    def sessions(self, turns: int) -> list[list[int]]:
        """Return the contexts of sessions that have so many turns together."""
        found: list[list[int]] = []
        while turns:
            length = min(turns, int(self._rng.integers(1, self._stream.turns + 1)))
            found.append([int(c) for c in self._rng.choice(CONTEXTS, length, p=self._shares)])
            turns -= length
        return found

    def luck(self, size: int) -> Array:
        """Draw [size, ANSWER + 3], in [0, 1): for the sampling of each token, the verdict, a flip, and the delay."""
        return self._rng.random((size, ANSWER + 3))

    def accepts(self, context: int, answer: Sequence[int]) -> float:
        """Return the probability that the answer is accepted."""
        first = FIRST * (answer[0] == self._first[context])
        second = SECOND * (answer[1] == self._second[context][answer[0]])
        return float(np.clip(self._base[context] + first + second, 0, 1))

    def wanted(self, context: int) -> tuple[int, int]:
        """Return the answer that is likeliest to be accepted."""
        first = int(self._first[context])
        return first, int(self._second[context][first])

    def best(self, context: int) -> float:
        return self.accepts(context, self.wanted(context))
