"""Seeded users with a taste that they tell in words, rightly or not, when an answer displeases them.

A request is one of a few; a good answer is a token of style, the token that the request asks for, and the end. The
model begins able to do what is said in a request ("rather S", "say B", "short"), and with no style of its own. Which
style is right depends on the workload, and nobody says so before the first answer."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

REQUESTS, STYLES = 8, 8
BODIES = REQUESTS  # each request asks for its own
LONGEST = 4  # tokens of an answer

STYLE_0 = REQUESTS
BODY_0 = STYLE_0 + STYLES
END = BODY_0 + BODIES
RATHER, SAY, SHORT, ANSWER = range(END + 1, END + 5)
VOCABULARY = ANSWER + 1

PLEASED, STYLE_PLEASES, BODY_PLEASES = 0.05, 0.5, 0.4  # how likely an answer is accepted
ACCEPTED, REJECTED = 1.0, -0.5

Tokens = Sequence[int]


@dataclass(frozen=True)
class Words:
    """How users talk.

    `speak`: the share of displeased ones who say anything; `wrong`: of those, who name a style that they do not want;
    `leak`: whether they also say what only this answer was to hold, and that it was to be short; `always`: they say the
    same after every answer, also one that pleased."""

    speak: float = 0.5
    wrong: float = 0.0
    leak: bool = False
    always: bool = False


SILENT = Words(speak=0.0)
HONEST = Words()
MOODS = {
    "told": HONEST,
    "told, of which 3 in 10 wrong": replace(HONEST, wrong=0.3),
    "told, all wrong": replace(HONEST, wrong=1.0),
    "told, with the answer given away": replace(HONEST, leak=True),
    "told after every answer": replace(HONEST, always=True, speak=1.0),
}


class Users:
    """The same seed asks the same and draws the same luck, whichever policy answers."""

    def __init__(self, words: Words, seed: int, workloads: int) -> None:
        self._words, self._workloads = words, workloads
        self._rng = np.random.default_rng((7, seed))
        self.styles = [int(style) for style in self._rng.choice(STYLES, workloads, replace=False)]

    def ask(self, count: int) -> list[int]:
        return [int(request) for request in self._rng.integers(REQUESTS, size=count)]

    def luck(self, count: int) -> np.ndarray:
        """Draw [count, LONGEST + 4] in [0, 1): for each token, the verdict, speaking, being wrong, and which wrong."""
        return self._rng.random((count, LONGEST + 4))

    def accepts(self, request: int, answer: Tokens) -> float:
        """Return the probability that an answer is accepted."""
        body = tuple(answer[1:]) == (BODY_0 + request, END)
        return PLEASED + STYLE_PLEASES * (answer[0] == self.style(request)) + BODY_PLEASES * body

    def style(self, request: int) -> int:
        return STYLE_0 + self.styles[self.workload(request)]

    def workload(self, request: int) -> int:
        return request * self._workloads // REQUESTS

    def say(self, request: int, accepted: bool, luck: np.ndarray) -> str | None:
        """Return the words about an answer; None when the user says none."""
        speaks, errs, which = luck
        if (accepted and not self._words.always) or speaks >= self._words.speak:
            return None
        style = self.style(request)
        if errs < self._words.wrong:
            style = STYLE_0 + (style - STYLE_0 + 1 + int(which * (STYLES - 1))) % STYLES
        leak = f" {SAY} {BODY_0 + int(which * BODIES)} {SHORT}" if self._words.leak else ""
        return f"{RATHER} {style}{leak}"


BEST = PLEASED + STYLE_PLEASES + BODY_PLEASES
