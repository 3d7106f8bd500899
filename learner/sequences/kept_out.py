"""Suites of eval cases that must not be learned by heart, and how much of what was read resembled them."""

from collections import Counter
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import msgspec
from tokenizers import Tokenizer

from core.events import Completion, Hint, TextEdit
from core.records.text_edits import applied
from learner.sequences.resemblance import Solutions

EVAL_SOLUTION = "eval_solution"
"""Why a turn or a document was left out that resembles a solution."""


@dataclass(frozen=True)
class SuiteSolutions:
    """The solutions of one suite by the name of their case; `digest` is that of the suite's files."""

    name: str
    digest: str
    solutions: Mapping[str, str] = field(default_factory=dict)


class SuiteCheck(msgspec.Struct, frozen=True, kw_only=True):
    """How many texts were compared with a suite, and how many were left out since they resembled it.

    `cases`: how many of its cases have a solution to compare with."""

    suite: str
    digest: str
    cases: int
    compared: int
    left_out: int


class KeptOut:
    """The suites, to be compared with. `left_out` counts turns that resembled a suite's solution, by its digest."""

    def __init__(self, suites: Sequence[SuiteSolutions] = (), model: Path | None = None) -> None:
        """`model`: the directory whose tokenizer reads the texts that users left; None: turns have none."""
        self._model = model
        self._suites = [(suite, Solutions(suite.solutions)) for suite in suites]
        self.left_out = Counter[str]()

    def counting_anew(self) -> "KeptOut":
        """Return the same suites with a count of their own."""
        another = copy(self)
        another.left_out = Counter()
        return another

    @property
    def digests(self) -> list[str]:
        return [suite.digest for suite, _ in self._suites]

    def refusal(self, turn: Completion, edits: Sequence[TextEdit] = (), hints: Sequence[Hint] = ()) -> str | None:
        """Return why a turn may not train that resembles a solution; count it.

        It does when its answer does, or a call of it, what `edits` of a user made of the answer, or what was said of
        it (`hints`)."""
        left = forms_of(self._tokenizer.decode(applied(turn.token_ids, edits))) if edits and self._suites else []
        left += [form for hint in hints for form in forms_of(hint.text)]
        recalled = [
            suite.digest
            for suite, solutions in self._suites
            if solutions.recalled_in(turn) or any(solutions.resembled_by(text) is not None for text in left)
        ]
        self.left_out.update(recalled)
        return EVAL_SOLUTION if recalled else None

    @cached_property
    def _tokenizer(self) -> Tokenizer:
        assert self._model is not None, "only the learner of a model reads edits"
        return Tokenizer.from_file(str(self._model / "tokenizer.json"))

    def take(self, compared: int) -> tuple[SuiteCheck, ...]:
        """Return what came of comparing so many turns since this was taken last."""
        found = self.checks(compared, self.left_out)
        self.left_out.clear()
        return found

    def resembled_by(self, texts: Sequence[str]) -> list[str]:
        """Return the digests of the suites that have a solution which one of the texts resembles."""
        return [
            suite.digest
            for suite, solutions in self._suites
            if any(solutions.resembled_by(text) is not None for text in texts)
        ]

    def checks(self, compared: int, left_out: Mapping[str, int]) -> tuple[SuiteCheck, ...]:
        """Return what came of comparing, suite by suite; `left_out` are counts by a suite's digest."""
        counts = Counter(left_out)
        return tuple(
            SuiteCheck(
                suite=suite.name,
                digest=suite.digest,
                cases=len(suite.solutions),
                compared=compared,
                left_out=counts[suite.digest],
            )
            for suite, _ in self._suites
        )


def forms_of(text: str) -> list[str]:
    """Return a text as an answer has it; and once more as it is without the escapes of a call's JSON."""
    return [text, text.replace("\\n", "\n").replace("\\t", "\t").replace('\\"', '"')]
