"""A search for texts that are near-duplicates of the solutions of eval cases.

If the model trained on them, it would recall them, and the eval cases would measure nothing.

Texts are compared by shingles, runs of 5 tokens (Broder 1997, "On the resemblance and containment of documents"): words
and signs, ignoring case and white space. A text resembles a solution when the shingles they share are at least LIKENESS
of all shingles of both (Jaccard), or when it contains CONTAINED of the solution's shingles among much else. A solution
of fewer than LONG tokens occurs by chance in many texts, and is only compared as a whole."""

import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from core.events import Completion
from core.text.edits import text_of_call, words_of_call

SHINGLE = 5
LIKENESS = 0.5
CONTAINED = 0.8
LONG = 20
_TOKEN = re.compile(r"\w+|[^\w\s]")
Shingle = tuple[str, ...]
Name = TypeVar("Name", bound=Hashable)
CaseName = tuple[str, str]
"""A case by its suite and its own name."""


class Solutions(Generic[Name]):
    """Solutions, or other texts, by the name of their case.

    Looking a text up costs time in its own length, not in the number of solutions."""

    def __init__(self, solutions: Mapping[Name, str]) -> None:
        self._sizes: dict[Name, int] = {}
        self._long: set[Name] = set()
        self._having: defaultdict[Shingle, list[Name]] = defaultdict(list)
        for name, solution in solutions.items():
            self.add(name, solution)

    def add(self, name: Name, solution: str) -> None:
        """Add a solution under a name that has none yet."""
        tokens = _tokens(solution)
        shingles = _shingles(tokens)
        self._sizes[name] = len(shingles)
        if len(tokens) >= LONG:
            self._long.add(name)
        for shingle in shingles:
            self._having[shingle].append(name)

    def resembled_by(self, text: str) -> Name | None:
        """Return the case whose solution the text resembles most; None when it resembles none closely enough."""
        return next(iter(self.all_resembled_by(text)), None)

    def all_resembled_by(self, text: str) -> list[Name]:
        """Return all cases whose solution the text resembles closely enough, the closest first."""
        if not self._sizes:
            return []
        shingles = _shingles(_tokens(text))
        shared = Counter(name for shingle in shingles for name in self._having.get(shingle, ()))
        near = [name for name, common in shared.items() if self._near(name, common, len(shingles))]
        return sorted(near, key=lambda name: -shared[name] / self._sizes[name])

    def _near(self, name: Name, common: int, size: int) -> bool:
        alike = common / (size + self._sizes[name] - common)
        return alike >= LIKENESS or (name in self._long and common / self._sizes[name] >= CONTAINED)


@dataclass(frozen=True)
class SuiteSolutions:
    """The solutions of one eval suite by the name of their case, and the digest of its cases.

    `suite`: its directory."""

    suite: str
    digest: str
    solutions: Mapping[str, str]


class KeptOut:
    """Eval suites whose solutions are kept out of training, with all that resembles them."""

    def __init__(self, suites: Iterable[SuiteSolutions] = ()) -> None:
        self.suites = tuple(suites)
        texts = {(each.suite, case): text for each in self.suites for case, text in each.solutions.items()}
        self._solutions = Solutions[CaseName](texts)

    @property
    def solutions(self) -> list[str]:
        return [text for each in self.suites for text in each.solutions.values()]

    def cases_told_by(self, text: str) -> list[CaseName]:
        """Return the cases whose solution the text resembles, the closest first."""
        return self._solutions.all_resembled_by(text)

    def cases_recalled_in(self, turn: Completion) -> list[CaseName]:
        """Return the cases whose solution the turn's answer resembles, or what it wrote in a tool call."""
        return list(dict.fromkeys(case for text in answers_of(turn) for case in self.cases_told_by(text)))


NOTHING_KEPT_OUT: Final = KeptOut()


def answers_of(turn: Completion) -> Iterator[str]:
    """Yield the texts of a turn: its answer, and for each tool call the text that it writes, and all of its texts."""
    yield turn.text
    for call in turn.tool_calls:
        for text in (text_of_call(call.arguments), words_of_call(call.arguments)):
            yield call.arguments if text is None else text


def _tokens(text: str) -> list[str]:
    return _TOKEN.findall(unicodedata.normalize("NFKC", text).casefold())


def _shingles(tokens: list[str]) -> set[Shingle]:
    """Return the shingles of the tokens; all tokens are one shingle when they are fewer than its length."""
    last = max(1, len(tokens) - SHINGLE + 1) if tokens else 0
    return {tuple(tokens[start : start + SHINGLE]) for start in range(last)}
