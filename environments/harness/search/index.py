"""An index of a tree's symbols, by which a question finds the places that are most likely meant.

BM25 (bm25s's, in Lucene's form) over the words of each symbol. The words of a name say more than those of a body: a
field's words count as often as its weight says, as in BM25F with one length for all fields. The weights were chosen on
one library and measured on others (`bench/code_search.py`)."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import bm25s
import numpy as np

from environments.harness.search.symbols import Symbol
from environments.harness.search.words import words_of


@dataclass(frozen=True)
class WordCounts:
    """How often the words of each part of a symbol count."""

    name: int = 8
    path: int = 1
    head: int = 1
    prose: int = 3
    body: int = 1


@dataclass(frozen=True)
class Found:
    symbol: Symbol
    score: float


class Index:
    """An index over symbols, which are given once."""

    def __init__(self, symbols: Iterable[Symbol], weights: WordCounts | None = None) -> None:
        self.symbols = list(symbols)
        words = [_words(symbol, weights or WordCounts()) for symbol in self.symbols]
        self._known = {word for each in words for word in each}
        self._index = bm25s.BM25(method="lucene", k1=1.2, b=0.6)
        if self._known:
            self._index.index(words, show_progress=False)

    def find(self, question: str, most: int) -> list[Found]:
        """Return the symbols that a question is most likely about, the likeliest first; each shares a word with it."""
        asked = [word for word in dict.fromkeys(words_of(question)) if word in self._known]
        if not asked:
            return []
        scores = np.asarray(self._index.get_scores(asked))
        best = np.argsort(-scores, kind="stable")[:most]
        return [Found(self.symbols[place], float(scores[place])) for place in best if scores[place] > 0]


def _words(symbol: Symbol, weights: WordCounts) -> list[str]:
    parts = (
        (words_of(symbol.name), weights.name),
        (words_of(symbol.path), weights.path),
        (words_of(symbol.head), weights.head),
        (words_of(symbol.prose), weights.prose),
        (words_of(symbol.body), weights.body),
    )
    return [word for words, times in parts for word in _times(words, times)]


def _times(words: Sequence[str], times: int) -> Sequence[str]:
    return list(words) * times
