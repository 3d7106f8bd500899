"""A search for texts that are near-duplicates of the solutions of eval cases.

If the model trained on them, it would recall them, and the eval cases would measure nothing.

Texts are compared by shingles, runs of 5 tokens (Broder 1997, "On the resemblance and containment of documents"): words
and signs, ignoring case and white space. A text resembles a solution when the shingles they share are at least LIKENESS
of all shingles of both (Jaccard), or when it contains CONTAINED of the solution's shingles among much else. A solution
of fewer than LONG tokens occurs by chance in many texts, and is only compared as a whole."""

import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping

from core.events import Completion
from core.text.edits import text_of_call

SHINGLE = 5
LIKENESS = 0.5
CONTAINED = 0.8
LONG = 20
_TOKEN = re.compile(r"\w+|[^\w\s]")
Shingle = tuple[str, ...]


class Solutions:
    """The solutions by the name of their case.

    Looking a text up costs time in its own length, not in the number of solutions."""

    def __init__(self, solutions: Mapping[str, str]) -> None:
        self._sizes: dict[str, int] = {}
        self._long: set[str] = set()
        self._having: defaultdict[Shingle, list[str]] = defaultdict(list)
        for name, solution in solutions.items():
            tokens = _tokens(solution)
            shingles = _shingles(tokens)
            self._sizes[name] = len(shingles)
            if len(tokens) >= LONG:
                self._long.add(name)
            for shingle in shingles:
                self._having[shingle].append(name)

    def resembled_by(self, text: str) -> str | None:
        """Return the case whose solution the text resembles most; None when it resembles none closely enough."""
        shingles = _shingles(_tokens(text))
        shared = Counter(name for shingle in shingles for name in self._having.get(shingle, ()))
        near = [name for name, common in shared.items() if self._near(name, common, len(shingles))]
        return max(near, key=lambda name: shared[name] / self._sizes[name], default=None)

    def recalled_in(self, turn: Completion) -> bool:
        """Return whether a turn's answer, or what it wrote in a tool call, resembles a solution."""
        return bool(self._sizes) and any(self.resembled_by(text) is not None for text in _answers(turn))

    def _near(self, name: str, common: int, size: int) -> bool:
        alike = common / (size + self._sizes[name] - common)
        return alike >= LIKENESS or (name in self._long and common / self._sizes[name] >= CONTAINED)


def _answers(turn: Completion) -> Iterator[str]:
    yield turn.text
    for call in turn.tool_calls:
        text = text_of_call(call.arguments)
        yield call.arguments if text is None else text


def _tokens(text: str) -> list[str]:
    return _TOKEN.findall(unicodedata.normalize("NFKC", text).casefold())


def _shingles(tokens: list[str]) -> set[Shingle]:
    """Return the shingles of the tokens; all tokens are one shingle when they are fewer than its length."""
    last = max(1, len(tokens) - SHINGLE + 1) if tokens else 0
    return {tuple(tokens[start : start + SHINGLE]) for start in range(last)}
