"""Code search against grep: how often the place that a question is about is among the first five.

    python -m bench code_search

Two sets of questions, on libraries as they are installed here:

- *written*: forty by hand (`where_is.py`), over the libraries as they are;
- *told*: the first sentence of a function's docstring, over the libraries without any docstring, so that only names and
  code can answer. 150 functions a library, drawn by a fixed seed.

The weights of fields were chosen on `rich` alone, by its told questions (`--choose`); it is none of the libraries
measured here. Grep is taken at its best: every word of a question is looked for, in any case, and places are ordered by
how many of the words stand in them, the shortest first; nobody greps so well by hand. *One grep* is for the rarest word
of the question, and takes places as the files have them. The interval is of the difference from grep at its best,
paired by question, by bootstrap."""

import argparse
import importlib.util
import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path

import numpy as np

from bench.environments.where_is import QUESTIONS
from bench.table import Row, report
from environments.harness.search.index import Index, WordCounts
from environments.harness.search.symbols import Symbol, symbols_of
from environments.harness.search.words import words_of

CHOSEN_ON = "rich"
MEASURED_ON = ("httpx", "click", "starlette", "jinja2", "aiohttp", "fsspec")
TOLD = 150
FIRST = 5
LEAST_WORDS = 4
SEED = 22

Search = Callable[[str], list[Symbol]]


@dataclass(frozen=True)
class Question:
    """A question and the places that answer it, as (path, name)."""

    text: str
    answers: frozenset[tuple[str, str]]


def symbols_in(library: str) -> list[Symbol]:
    spec = importlib.util.find_spec(library)
    assert spec is not None, f"{library} is not installed"
    assert spec.origin is not None
    root = Path(spec.origin).parent
    paths = sorted(root.rglob("*.py"))
    return [symbol for path in paths for symbol in symbols_of(str(path.relative_to(root.parent)), path.read_text())]


def written(library: str, symbols: Sequence[Symbol]) -> list[Question]:
    """Return the questions on a library that were written by hand. Raises ValueError where an answer does not exist."""
    questions = []
    for text, names in QUESTIONS[library]:
        places = frozenset((symbol.path, symbol.name) for symbol in symbols if symbol.name in names)
        if not places:
            raise ValueError(f"{library} has no {names}")
        questions.append(Question(text, places))
    return questions


def told(symbols: Sequence[Symbol], count: int, seed: int) -> list[Question]:
    """Return questions out of docstrings: first sentences of at least four words that say more than the name does."""
    found = []
    for symbol in symbols:
        sentence = re.split(r"\.(?:\s|$)|\n\s*\n|:\n", symbol.prose.strip("rub\"' \n"))[0]
        words = set(words_of(sentence))
        if (
            symbol.kind in ("function", "method")
            and len(words) >= LEAST_WORDS
            and not words <= set(words_of(symbol.name))
        ):
            found.append(Question(" ".join(sentence.split()), frozenset([(symbol.path, symbol.name)])))
    return random.Random(seed).sample(found, min(count, len(found)))


def by_grep(symbols: Sequence[Symbol]) -> Search:
    """Return grep at its best over symbols: those in which most of the words stand, the shortest first."""
    texts = [" ".join((symbol.path, symbol.head, symbol.prose, symbol.body)).lower() for symbol in symbols]

    def find(question: str) -> list[Symbol]:
        words = {word for word in re.findall(r"[a-z0-9]+", question.lower()) if words_of(word)}
        hits = [(sum(word in text for word in words), -len(text), place) for place, text in enumerate(texts)]
        best = sorted((hit for hit in hits if hit[0]), reverse=True)[:FIRST]
        return [symbols[place] for _, _, place in best]

    return find


def by_one_grep(symbols: Sequence[Symbol]) -> Search:
    """Return one grep: the places, in the order of the files, in which the rarest word of a question stands."""
    texts = [" ".join((symbol.path, symbol.head, symbol.prose, symbol.body)).lower() for symbol in symbols]

    def find(question: str) -> list[Symbol]:
        words = {word for word in re.findall(r"[a-z0-9]+", question.lower()) if words_of(word)}
        places = [[place for place, text in enumerate(texts) if word in text] for word in sorted(words)]
        rarest = min((each for each in places if each), key=len, default=[])
        return [symbols[place] for place in rarest[:FIRST]]

    return find


def by_search(symbols: Sequence[Symbol], weights: WordCounts) -> Search:
    index = Index(symbols, weights)
    return lambda question: [found.symbol for found in index.find(question, FIRST)]


def hits(search: Search, questions: Sequence[Question]) -> np.ndarray:
    """Return, for each question, whether the right symbol, and whether the right file, is among the first five."""
    rows = []
    for question in questions:
        found = search(question.text)
        files = {path for path, _ in question.answers}
        rows.append(
            (
                any((symbol.path, symbol.name) in question.answers for symbol in found),
                any(symbol.path in files for symbol in found),
            )
        )
    return np.array(rows, dtype=float)


def interval(differences: np.ndarray) -> tuple[float, float]:
    """Return the 95% interval of the mean, by bootstrap over questions."""
    draw = np.random.default_rng(SEED)
    means = [float(draw.choice(differences, len(differences)).mean()) for _ in range(2000)]
    return float(np.quantile(means, 0.025)), float(np.quantile(means, 0.975))


def choose() -> None:
    """Print what each choice of weights comes to on the one library that they may be chosen on."""
    symbols = symbols_in(CHOSEN_ON)
    questions = told(symbols, 2 * TOLD, SEED)
    bare = [replace(symbol, prose="") for symbol in symbols]
    tried = []
    for name, path, head, body in product((2, 4, 8), (0, 1), (0, 1, 2), (1,)):
        weights = WordCounts(name=name, path=path, head=head, body=body)
        tried.append((float(hits(by_search(bare, weights), questions)[:, 0].mean()), weights))
    for recall, weights in sorted(tried, key=lambda each: -each[0])[:10]:
        print(f"{recall:.3f} {weights}")


def measure() -> list[Row]:
    kinds: dict[str, list[list[np.ndarray]]] = {"written": [], "told": []}
    for library in MEASURED_ON:
        symbols = symbols_in(library)
        sets = {"told": (told(symbols, TOLD, SEED), [replace(symbol, prose="") for symbol in symbols])}
        if library in QUESTIONS:
            sets["written"] = (written(library, symbols), symbols)
        for kind, (questions, shown) in sets.items():
            searches = by_search(shown, WordCounts()), by_grep(shown), by_one_grep(shown)
            kinds[kind].append([hits(search, questions) for search in searches])
    return [row for kind, parts in kinds.items() for row in _rows(kind, parts)]


def _rows(kind: str, parts: list[list[np.ndarray]]) -> list[Row]:
    search, grep, one_grep = (np.concatenate(each) for each in zip(*parts, strict=True))
    rows = [Row(f"questions, {kind}", float(len(search)), "")]
    for place, what in enumerate(("symbol", "file")):
        ours, theirs = search[:, place].mean(), grep[:, place].mean()
        low, high = interval(search[:, place] - grep[:, place])
        rows.append(Row(f"recall@5 of the {what}, one grep, {kind}", float(one_grep[:, place].mean()), ""))
        rows.append(Row(f"recall@5 of the {what}, grep at its best, {kind}", float(theirs), ""))
        rows.append(
            Row.at_least(
                f"recall@5 of the {what}, search, {kind}",
                float(ours),
                "",
                "grep at its best",
                float(ours / theirs),
                1.0,
            )
        )
        rows.append(Row(f"least gain over grep, {what}, {kind} (95%)", low, "", None, low, 0.0, bool(low > 0)))
        rows.append(Row(f"greatest gain over grep, {what}, {kind} (95%)", high, ""))
    return rows


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--choose", action="store_true", help="try weights on the library that they are chosen on")
    if parser.parse_args().choose:
        choose()
    else:
        report("code_search", measure())
