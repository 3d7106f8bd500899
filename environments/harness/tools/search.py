"""The tool `search`: where in the code something is done, asked in words.

The files are read out of the sandbox once, and again where their digests have changed."""

import asyncio
from dataclasses import dataclass
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from environments.harness.search.index import Found, Index
from environments.harness.search.symbols import Symbol, symbols_of
from environments.harness.tools.tool import Bench, Result, Tool, ToolRefused

_FOUND: Final = 10
_MOST_FILES: Final = 5000
_MOST_CHARACTERS: Final = 24 << 20  # of all files: an index takes fifty times as much of this machine's memory
_LARGEST: Final = "512k"  # of a file, as `find` takes it
_AT_ONCE: Final = 16
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
_LEFT_OUT: Final = (".git", "__pycache__", "node_modules", ".venv", ".tox", "build", "dist")


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
        """Return an index of the working copy as it is now."""
        async with self._lock:
            digests = await _digests(bench)
            kept = {path: known for path, known in self._files.items() if digests.get(path) == known.digest}
            changed = [path for path in digests if path not in kept]
            if self._index is not None and not changed and len(kept) == len(self._files):
                return self._index
            self._index = None
            room = _Room(_MOST_CHARACTERS - sum(known.characters for known in kept.values()))
            sources = await asyncio.gather(*(_source(bench, path, room) for path in changed))
            parsed = await asyncio.to_thread(_parsed, changed, sources)
            self._files = kept | {
                path: _File(digests[path], len(source), symbols)
                for path, source, symbols in zip(changed, sources, parsed, strict=True)
            }
            symbols = [symbol for path in sorted(self._files) for symbol in self._files[path].symbols]
            self._index = await asyncio.to_thread(Index, symbols)
            return self._index


async def _digests(bench: Bench) -> dict[str, str]:
    """Return the digest of each file that is searched. Raises ToolRefused where there are too many."""
    left_out = [part for name in _LEFT_OUT for part in ("-o", "-name", name)][1:]
    endings = [part for ending in _ENDINGS for part in ("-o", "-name", f"*.{ending}")][1:]
    wanted = ("-type", "f", "-size", f"-{_LARGEST}", "(", *endings, ")", "-exec", "sha1sum", "{}", "+")
    ran = await bench.run(("find", ".", "(", *left_out, ")", "-prune", "-o", *wanted))
    if ran.timed_out or ran.cut_bytes:
        raise ToolRefused("there are too many files here to search; use `grep`")
    lines = ran.stdout.decode(errors="surrogateescape").splitlines()
    digests = {path.removeprefix("./"): digest for digest, _, path in (line.partition("  ") for line in lines)}
    if len(digests) > _MOST_FILES:
        raise ToolRefused(f"there are {len(digests)} files here, too many to search; use `grep`")
    return digests


class _Room:
    """How much more may be read, by how many at once."""

    def __init__(self, characters: int) -> None:
        self.gate = asyncio.Semaphore(_AT_ONCE)
        self._left = characters

    def take(self, characters: int) -> None:
        """Raise ToolRefused where there is no room for so many."""
        self._left -= characters
        if self._left < 0:
            raise ToolRefused("there is too much text here to search; use `grep`")


async def _source(bench: Bench, path: str, room: _Room) -> str:
    """Return a file's text; "" where it has gone, or may not be read, since it was listed.

    Raises ToolRefused where all of it is too much."""
    async with room.gate:
        room.take(0)
        try:
            text = await bench.text(path, errors="replace")
        except ToolRefused:
            return ""
        room.take(len(text))
        return text


def _parsed(paths: list[str], sources: list[str]) -> list[list[Symbol]]:
    return [symbols_of(path, source) for path, source in zip(paths, sources, strict=True)]


async def _search(bench: Bench, asked: Search) -> Result:
    tree = bench.kept.setdefault("search", Tree())
    index = await tree.index(bench)
    found = await asyncio.to_thread(index.find, asked.query, _FOUND)
    if not found:
        return Result("nothing here shares a word with that; `grep` looks for characters")
    return Result("\n".join(_shown(each) for each in found))


def _shown(found: Found) -> str:
    symbol = found.symbol
    name = f" {symbol.name}" if symbol.name else ""
    head = f": {symbol.head[:160]}" if symbol.kind != "file" else ""
    return f"{symbol.path}:{symbol.start}-{symbol.end} {symbol.kind}{name}{head}"


SEARCH = Tool("search", Search, _search, reads_only=True)
