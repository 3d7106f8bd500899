"""The fate of a suggested text: how far it was edited, and how much of it is left."""

import re
from collections.abc import Iterator, Sequence
from typing import Any, Final

from rapidfuzz.distance import Indel, Levenshtein

from core.text.json_objects import object_of

LONGEST: Final = 16_384
"""Characters of each text whose distance is taken: it takes time with the product of their lengths, some milliseconds
for two of this length."""
_TEXTS: Final = ("text", "content", "contents", "new_string", "new_text", "new_str", "replacement", "code", "code_edit")
_NUMBERED = re.compile(r"^\s*\d+\s*[:|\t ]\s?")
_HUNK = re.compile(r"^@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@")


def edit_distance(a: str, b: str) -> float:
    """Levenshtein's distance as a share of the longer text's length: 0 for the same, 1 for nothing in common."""
    return Levenshtein.normalized_distance(a, b)


def likeness(a: str, b: str, least: float) -> float:
    """Twice the longest common subsequence's length as a share of both texts'; 0 where it lies below `least`."""
    return Indel.normalized_similarity(a, b, score_cutoff=least)


def share_left(edit: str, file: str) -> float | None:
    """Return the share of the edit's lines that are left in the file, in any place; None for an edit without lines.

    White space around a line, and the line numbers that tools put before it, do not count."""
    left = [each for each in lines_left(edit.splitlines(), file) if each is not None]
    return sum(left) / len(left) if left else None


def lines_left(lines: Sequence[str], file: str) -> list[bool | None]:
    """Return of each line whether it is left in the file, as `share_left` has it; None of a blank line."""
    there = {form for line in file.splitlines() for form in (line.strip(), _NUMBERED.sub("", line).strip())}
    return [line.strip() in there if line.strip() else None for line in lines]


def text_of_call(arguments: str) -> str | None:
    """Return what an editing tool call writes; None when it does not say."""
    said = object_of(arguments) or {}
    return next((said[name] for name in _TEXTS if isinstance(said.get(name), str)), None)


def words_of_call(arguments: str) -> str | None:
    """Return all texts in a call's arguments, joined by line ends; None where the arguments are not an object.

    Words are compared in these texts and not in the JSON, which escapes quotes and line ends."""
    said = object_of(arguments)
    return None if said is None else "\n".join(_texts_in(said))


def _texts_in(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    for each in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from _texts_in(each)


def patched(text: str, diff: str) -> str:
    """Return the text after a unified diff of one file. Raises ValueError, saying where it does not fit."""
    old, patch = text.split("\n"), diff.split("\n")
    new: list[str] = []
    at = hunks = number = 0
    while number < len(patch):
        header = _HUNK.match(patch[number])
        number += 1
        if header is None:
            continue
        hunks += 1
        start, count, added = int(header[1]), int(header[2] or 1), int(header[4] or 1)
        start -= bool(count)  # a hunk that takes nothing away names the line before it
        if not at <= start <= len(old):
            raise ValueError(f"line {number}: there is no line {start + 1} to change")
        new += old[at:start]
        at, end = start, start + count
        while at < end or added > 0:
            kind, line = _change(patch, number)
            number += 1
            if kind in " -":
                if at >= end or at >= len(old) or old[at].rstrip("\r") != line.rstrip("\r"):
                    raise ValueError(f"line {number}: it is not what line {at + 1} of the suggested text says")
                at += 1
            if kind in " +":
                added -= 1
                new.append(line)
        if added:
            raise ValueError(f"line {number}: more lines are added than its header says")
    if not hunks:
        raise ValueError("it has no hunks (@@ -1,2 +1,3 @@)")
    return "\n".join(new + old[at:])


def _change(patch: list[str], number: int) -> tuple[str, str]:
    """Split a line of a hunk into its operation and its text. Editors strip the blank from empty lines of context."""
    if number >= len(patch):
        raise ValueError(f"line {number}: its last hunk ends too soon")
    line = patch[number] or " "
    if line[0] not in " +-\\":
        raise ValueError(f"line {number + 1}: begins with neither blank, + nor -")
    return line[0], line[1:]
