"""Reads the files of a working copy out of its sandbox: what there is, by digest, and the text of each.

How much is read is bounded: it lies in this process's memory."""

import asyncio
from collections.abc import Sequence
from typing import Final

from environments.harness.tools.tool import Bench, ToolRefused

_MOST_FILES: Final = 5000
_MOST_CHARACTERS: Final = 24 << 20  # of all files: an index takes fifty times as much of this machine's memory
_LARGEST: Final = "512k"  # of a file, as `find` takes it
_AT_ONCE: Final = 16
_LEFT_OUT: Final = (".git", "__pycache__", "node_modules", ".venv", ".tox", "build", "dist")


class Unreadable(Exception):
    """The working copy cannot be read, or has more than is read; the message says of what."""


async def digests(bench: Bench, endings: Sequence[str] | None = None) -> dict[str, str]:
    """Return the digest of each file by its path, of those with certain endings or of all but what tools made.

    Raises Unreadable."""
    left_out = [part for name in _LEFT_OUT for part in ("-o", "-name", name)][1:]
    named = [part for ending in endings or () for part in ("-o", "-name", f"*.{ending}")][1:]
    wanted = ("-type", "f", "-size", f"-{_LARGEST}", *(("(", *named, ")") if named else ()))
    ran = await bench.run(("find", ".", "(", *left_out, ")", "-prune", "-o", *wanted, "-exec", "sha1sum", "{}", "+"))
    if ran.timed_out or ran.cut_bytes:
        raise Unreadable("there are too many files here to read")
    if ran.exit_code != 0 and not ran.stdout:
        raise Unreadable(f"the files here cannot be listed: {ran.stderr[-200:].decode(errors='replace').strip()}")
    lines = ran.stdout.decode(errors="surrogateescape").splitlines()
    found = {path.removeprefix("./"): digest for digest, _, path in (line.partition("  ") for line in lines)}
    if len(found) > _MOST_FILES:
        raise Unreadable(f"there are {len(found)} files here, too many to read")
    return found


class Room:
    """How much more may be read, by how many at once."""

    def __init__(self, taken: int = 0) -> None:
        """Begin with so many characters taken."""
        self.gate = asyncio.Semaphore(_AT_ONCE)
        self._left = _MOST_CHARACTERS - taken

    def take(self, characters: int) -> None:
        """Raise Unreadable where there is no room for so many."""
        self._left -= characters
        if self._left < 0:
            raise Unreadable("there is too much text here to read")


async def source(bench: Bench, path: str, room: Room) -> str:
    """Return a file's text; "" where it has gone, or may not be read, since it was listed.

    Raises Unreadable where all of it is too much."""
    async with room.gate:
        room.take(0)
        try:
            text = await bench.text(path, errors="replace")
        except ToolRefused:
            return ""
        room.take(len(text))
        return text
