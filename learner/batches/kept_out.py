"""Refuses to train on turns that resemble solutions of the eval suites that are kept out, and records it."""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec
from transformers import AutoTokenizer

from core.events import SuiteKeptOut
from core.model.files import LOCAL
from learner.sequences.resemblance import KeptOut
from learner.sequences.scored import ScoredTurn
from learner.sequences.written import users_text


class SuiteAdmission:
    """Says which turns resemble a solution of a suite that is kept out, and counts them by suite.

    `suites` is asked again before each batch, so that a case which is added while the learner runs is kept out, too.
    Users' own texts are read with the tokenizer of `model`."""

    def __init__(self, suites: Callable[[], KeptOut], model: Path) -> None:
        self._suites, self._known = suites, suites()
        self._model = model
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

    def without_told(self, scored: ScoredTurn) -> ScoredTurn:
        """Return the turn without those of its user's texts and words that resemble a solution, and count it then.

        So they do not teach, and what they taught before they resembled one is taken back."""
        if not self._known.solutions:
            return scored
        reward, told = scored.reward, self._told_by_user(scored)
        if told:
            reward = msgspec.structs.replace(reward, edits=(), edited_by=None)
        by_words = {hint: {suite for suite, _ in self._known.cases_told_by(hint.text)} for hint in reward.hints}
        if any(by_words.values()):
            reward = msgspec.structs.replace(reward, hints=tuple(hint for hint, told in by_words.items() if not told))
        self._turns.update(told.union(*by_words.values()))
        return scored if reward is scored.reward else replace(scored, reward=reward)

    def _told_by_user(self, scored: ScoredTurn) -> set[str]:
        """Return the suites of which the user's text resembles a solution, as it is or as a string within a call."""
        text = users_text(scored.turn, scored.reward.edits) if scored.reward.edits else None
        if text is None:
            return set()
        known = [token for token in text.token_ids if token < len(self._tokenizer)]
        written: str = self._tokenizer.decode(known, skip_special_tokens=True)
        plain = written.replace("\\n", "\n").replace('\\"', '"')
        return {suite for each in (written, plain) for suite, _ in self._known.cases_told_by(each)}

    @cached_property
    def _tokenizer(self) -> Any:
        return AutoTokenizer.from_pretrained(self._model, **LOCAL)

    def take(self) -> tuple[SuiteKeptOut, ...]:
        """Return the suites for a version's record, with the turns since the last one, and count anew."""
        turns, self._turns = self._turns, Counter()
        return tuple(
            SuiteKeptOut(suite=each.suite, digest=each.digest, solutions=len(each.solutions), turns=turns[each.suite])
            for each in self._known.suites
        )
