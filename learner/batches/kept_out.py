"""The admission of turns beside the eval suites that are kept out of training, and the record of it."""

from collections import Counter
from collections.abc import Callable

from core.events import SuiteKeptOut
from learner.sequences.resemblance import KeptOut
from learner.sequences.scored import ScoredTurn


class SuiteAdmission:
    """Says which turns resemble a solution of a suite that is kept out, and counts them by suite.

    `suites` is asked again before each batch, so that a case which is added while the learner runs is kept out, too."""

    def __init__(self, suites: Callable[[], KeptOut]) -> None:
        self._suites, self._known = suites, suites()
        self._turns = Counter[str]()

    def look_again(self) -> None:
        self._known = self._suites()

    def refusal(self, scored: ScoredTurn) -> str | None:
        """Return why the turn may not train, and count it under each suite whose solution it resembles.

        What trained before it resembled one is taken back like any other, but a better reward teaches it no further."""
        applied = scored.applied
        if applied is not None and (scored.reward.void or scored.reward.value <= applied.reward):
            return None
        suites = {suite for suite, _ in self._known.cases_recalled_in(scored.turn)}
        self._turns.update(suites)
        return "eval_solution" if suites else None

    def take(self) -> tuple[SuiteKeptOut, ...]:
        """Return the suites for a version's record, with the turns since the last one, and count anew."""
        turns, self._turns = self._turns, Counter()
        return tuple(
            SuiteKeptOut(suite=each.suite, digest=each.digest, solutions=len(each.solutions), turns=turns[each.suite])
            for each in self._known.suites
        )
