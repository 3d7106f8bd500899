"""Words, symbols and their index: what a question finds in code, and what it does not."""

import pytest

from environments.harness.search.index import Index
from environments.harness.search.symbols import symbols_of
from environments.harness.search.words import words_of

SOURCE = '''\
"""Talks to servers."""
import socket

LIMIT = 3


class Pool:
    """Keeps connections."""

    @property
    def size(self):
        return len(self._open)

    async def borrow(
        self, host: str
    ):
        """Take a connection out of the pool."""
        def inner():
            return socket.create_connection((host, 80))
        return inner()


if LIMIT:
    def fallback():
        return None
'''


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("parseHTTPHeader", ["pars", "http", "head"]),
        ("parse_http_headers", ["pars", "http", "head"]),
        ("where is the retrying of requests?", ["retry", "request"]),
        ("sha256 of py3 files", ["sha", "256", "py", "3", "fil"]),
        ("class classes", ["class", "class"]),
        ("", []),
    ],
)
def test_names_and_prose_have_the_same_words(text: str, words: list[str]) -> None:
    assert words_of(text) == words


def test_symbols_have_their_place_their_names_around_them_and_only_their_own_text() -> None:
    symbols = {symbol.name: symbol for symbol in symbols_of("pool.py", SOURCE)}
    assert list(symbols) == ["", "Pool", "Pool.size", "Pool.borrow", "Pool.borrow.inner", "fallback"]
    assert [symbol.kind for symbol in symbols.values()] == [
        "file", "class", "method", "method", "method", "function",
    ]  # fmt: skip
    borrow, pool = symbols["Pool.borrow"], symbols["Pool"]
    assert (borrow.start, borrow.end) == (14, 20)
    assert borrow.head == "async def borrow( self, host: str ):"
    assert "Take a connection" in borrow.prose
    assert "create_connection" not in borrow.body
    assert "create_connection" in symbols["Pool.borrow.inner"].body
    assert "Keeps" in pool.prose
    assert "Keeps" not in pool.body
    assert "LIMIT = 3" in symbols[""].body


def test_other_files_are_blocks_of_lines_and_broken_ones_are_what_parses() -> None:
    blocks = symbols_of("notes.md", "\n".join(f"line {number}" for number in range(100)))
    assert [(block.start, block.end) for block in blocks] == [(1, 40), (41, 80), (81, 100)]
    assert "fine" in [symbol.name for symbol in symbols_of("broken.py", "def fine():\n    return 1\n\ndef broken(:\n")]
    assert [symbol.kind for symbol in symbols_of("empty.py", "")] == ["file"]
    assert [symbol.kind for symbol in symbols_of("deep.py", "a." * 20_000)] == ["file"]


def test_a_name_says_more_than_a_mention() -> None:
    index = Index(symbols_of("pool.py", SOURCE))
    assert index.find("take out a connection", 1)[0].symbol.name == "Pool.borrow"
    assert index.find("the size of the pool", 1)[0].symbol.name == "Pool.size"
    assert index.find("zebra", 5) == []
    assert index.find("where is the", 5) == []
    assert Index([]).find("pool", 5) == []
