"""The tool `search`: where in the code something is done, asked in words.

The files are read out of the sandbox once, and again where their digests have changed."""

import asyncio
from dataclasses import dataclass
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from environments.harness.search.index import Found, Index
from environments.harness.search.symbols import Symbol, symbols_of
from environments.harness.tools.reading import Room, Unreadable, digests, source
from environments.harness.tools.tool import Bench, HarnessTool, Result, ToolRefused

_FOUND: Final = 10
_ENDINGS: Final = (
    "py",
    "pyi",
    "md",
    "rst",
    "txt",
    "toml",
    "cfg",
    "js",
    "ts",
    "go",
    "rs",
    "java",
    "c",
    "h",
    "cpp",
    "rb",
    "sh",
)


class Search(msgspec.Struct, forbid_unknown_fields=True):
    """Find where in the code something is done: say in words what it does.

    It shows the ten classes, functions and methods that fit best."""

    query: Annotated[str, Meta(min_length=1)]


@dataclass(frozen=True)
class _File:
    digest: str
    characters: int
    symbols: list[Symbol]


class Tree:
    """What is known of a working copy: the symbols of each file, by its path and digest."""

    def __init__(self) -> None:
        self._files: dict[str, _File] = {}
        self._index: Index | None = None
        self._lock = asyncio.Lock()

    async def index(self, bench: Bench) -> Index:
        """Return an index of the working copy as it is now. Raises Unreadable."""
        async with self._lock:
            there = await digests(bench, _ENDINGS)
            kept = {path: known for path, known in self._files.items() if there.get(path) == known.digest}
            changed = [path for path in there if path not in kept]
            if self._index is not None and not changed and len(kept) == len(self._files):
                return self._index
            self._index = None
            room = Room(sum(known.characters for known in kept.values()))
            sources = await asyncio.gather(*(source(bench, path, room) for path in changed))
            parsed = await asyncio.to_thread(_parsed, changed, sources)
            self._files = kept | {
                path: _File(there[path], len(text), symbols)
                for path, text, symbols in zip(changed, sources, parsed, strict=True)
            }
            symbols = [symbol for path in sorted(self._files) for symbol in self._files[path].symbols]
            self._index = await asyncio.to_thread(Index, symbols)
            return self._index


def _parsed(paths: list[str], sources: list[str]) -> list[list[Symbol]]:
    return [symbols_of(path, source) for path, source in zip(paths, sources, strict=True)]


async def _search(bench: Bench, asked: Search) -> Result:
    tree = bench.kept.setdefault("search", Tree())
    try:
        index = await tree.index(bench)
    except Unreadable as error:
        raise ToolRefused(f"{error}; use `grep`") from None
    found = await asyncio.to_thread(index.find, asked.query, _FOUND)
    if not found:
        return Result("nothing here shares a word with that; `grep` looks for characters")
    return Result("\n".join(_shown(each) for each in found))


def _shown(found: Found) -> str:
    symbol = found.symbol
    name = f" {symbol.name}" if symbol.name else ""
    head = f": {symbol.head[:160]}" if symbol.kind != "file" else ""
    return f"{symbol.path}:{symbol.start}-{symbol.end} {symbol.kind}{name}{head}"


SEARCH = HarnessTool("search", Search, _search, reads_only=True)
