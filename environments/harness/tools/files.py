"""The tools that read and change files: `read`, `edit`, `write`."""

import asyncio
import difflib
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from environments.harness.tools.tool import Bench, HarnessTool, Result, ToolRefused

_MOST_LINES: Final = 400
_NEAREST: Final = 0.6  # likeness from which a line is shown as the one that may have been meant
_MOST_COMPARED: Final = 5000  # lines, and of each so many characters: longer ones take the square of that
_MOST_COMPARED_CHARACTERS: Final = 240
_MOST_DIFFERED: Final = (
    20_000  # lines of a file before and after a change: what repeats itself takes the square of that
)

Line = Annotated[int, Meta(ge=1)]


class Read(msgspec.Struct, forbid_unknown_fields=True):
    """Show a file, or its lines `start` to `end`, with line numbers."""

    path: str
    start: Line = 1
    end: Line | None = None


class Edit(msgspec.Struct, forbid_unknown_fields=True):
    old: Annotated[str, Meta(min_length=1)]
    new: str
    everywhere: bool = False


class EditFile(msgspec.Struct, forbid_unknown_fields=True):
    """Replace text in a file.

    Each `old` must stand in the file exactly once, character by character and without line
    numbers, or be replaced `everywhere`. Edits apply one after another; if one fails, nothing is changed."""

    path: str
    edits: Annotated[list[Edit], Meta(min_length=1)]


class Write(msgspec.Struct, forbid_unknown_fields=True):
    """Write a file, with the folders that it needs; what was in it is replaced."""

    path: str
    content: str


async def _read(bench: Bench, asked: Read) -> Result:
    lines = (await bench.text(asked.path)).splitlines()
    if not lines:
        return Result(f"{asked.path} is empty")
    end = min(asked.end or len(lines), len(lines), asked.start + _MOST_LINES - 1)
    if asked.start > end:
        raise ToolRefused(
            f"{asked.path} has {len(lines)} lines; there is nothing from {asked.start} to {asked.end or end}"
        )
    shown = [f"{number}\t{lines[number - 1]}" for number in range(asked.start, end + 1)]
    is_part = asked.start > 1 or end < len(lines)
    head = [f"{asked.path}, lines {asked.start} to {end} of {len(lines)}"] if is_part else []
    return Result("\n".join([*head, *shown]))


async def _edit(bench: Bench, asked: EditFile) -> Result:
    before = await bench.text(asked.path)
    # In a thread: to look for a likely line, or for what differs, may take seconds, and other episodes go on.
    text = await asyncio.to_thread(_edited, before, asked)
    await bench.write(asked.path, text)
    return Result(await asyncio.to_thread(_changed, before, text, asked.path))


def _edited(before: str, asked: EditFile) -> str:
    text = before
    for number, edit in enumerate(asked.edits, 1):
        place = f"{asked.path}: edit {number}" if len(asked.edits) > 1 else asked.path
        text = _replaced(text, edit, place)
    if text == before:
        raise ToolRefused(f"{asked.path}: the edits change nothing")
    return text


def _replaced(text: str, edit: Edit, place: str) -> str:
    """Replace one piece. Raises ToolRefused where it is not in the text, or not once."""
    count = text.count(edit.old)
    if not count:
        raise ToolRefused(f"{place}: `old` is not in the file{_nearest(text, edit.old)}. Nothing was changed")
    if count > 1 and not edit.everywhere:
        lines = ", ".join(map(str, _lines_of(text, edit.old)[:10]))
        raise ToolRefused(
            f"{place}: `old` is in the file {count} times, at lines {lines}: take more lines around it, or set "
            "`everywhere`. Nothing was changed"
        )
    return text.replace(edit.old, edit.new)


def _lines_of(text: str, piece: str) -> list[int]:
    found, at = list[int](), text.find(piece)
    while at >= 0:
        found.append(text.count("\n", 0, at) + 1)
        at = text.find(piece, at + len(piece))
    return found


def _nearest(text: str, piece: str) -> str:
    """Return a clause on the line of the file that is most like the first one sought; "" where none is."""
    first = next((line for line in piece.splitlines() if line.strip()), "").strip()[:_MOST_COMPARED_CHARACTERS]
    lines = [line.strip()[:_MOST_COMPARED_CHARACTERS] for line in text.splitlines()[:_MOST_COMPARED]]
    likest = difflib.get_close_matches(first, lines, n=1, cutoff=_NEAREST) if first else []
    if not likest:
        return ""
    return f"; most like its first line is line {lines.index(likest[0]) + 1}: {likest[0]}"


def _changed(before: str, after: str, path: str) -> str:
    """Return what was changed, as a diff without context; of a very long file, how long it is now."""
    old, new = before.splitlines(), after.splitlines()
    if len(old) + len(new) > _MOST_DIFFERED:
        return f"{path} was changed: it has {len(new)} lines"
    diff = difflib.unified_diff(old, new, lineterm="", n=0)
    return "\n".join([f"{path} was changed:", *list(diff)[2:]])


async def _write(bench: Bench, asked: Write) -> Result:
    await bench.write(asked.path, asked.content)
    return Result(f"{asked.path}: {len(asked.content.splitlines())} lines were written")


READ = HarnessTool("read", Read, _read, reads_only=True)
EDIT = HarnessTool("edit", EditFile, _edit)
WRITE = HarnessTool("write", Write, _write)
