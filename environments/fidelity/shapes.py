"""The shape of a tool's output: its lines' form, or its JSON's, whatever they say."""

import json
from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import Any

_LINES = 400


def shape_of(text: str) -> tuple[str, ...]:
    """Return what is the same in two outputs of one format.

    Of JSON these are its keys and types; of text what its lines begin with before their own text, each kind once in a
    row, the form of the first and last line, and whether it ends with a line's end."""
    if text.lstrip()[:1] in ("{", "["):
        try:
            return ("json", _skeleton(json.loads(text)))
        except (ValueError, RecursionError):
            pass
    lines = text.split("\n")[:_LINES]
    begins = (beginning for beginning, _ in groupby(_begin(line) for line in lines if line.strip()))
    return ("text", _form(lines[0]), _form(text.rstrip("\n").rpartition("\n")[2]), str(text.endswith("\n")), *begins)


def _skeleton(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {_skeleton(value[key])}" for key in sorted(value)) + "}"
    if isinstance(value, list):
        return "[" + " | ".join(sorted({_skeleton(each) for each in value})) + "]"
    return "number" if isinstance(value, int | float) and not isinstance(value, bool) else type(value).__name__


def _form(line: str) -> str:
    """Return a line that begins with text, each word as `w` and each number as `9`; of others what they begin with.

    A number with a point is one, and a path is a word."""
    beginning = _begin(line)
    return "".join(_once(_kinds(line[:200]))) if beginning == "w" else beginning


def _begin(line: str) -> str:
    """Return what a line begins with: its number and the sign behind it, or white space; "w" for text."""
    made = "".join(_once(_kinds(line[:40])))
    if made.startswith("w:9"):
        return made[:4]
    head, _, _ = made.partition("w")
    return (head[: head.index("9") + 2] if "9" in head else head[:2]) or "w"


def _kinds(line: str) -> Iterator[str]:
    kind = ""
    for character in line:
        if character.isalpha() or character == "_":
            kind = "w"
        elif character.isdigit():
            kind = kind if kind == "w" else "9"
        elif not (kind == "w" and character in "/.-") and not (kind == "9" and character == "."):
            kind = character
        yield kind


def _once(kinds: Iterable[str]) -> Iterator[str]:
    for kind, run in groupby(kinds):
        yield kind if kind in "w9 " else kind * min(3, len(list(run)))
