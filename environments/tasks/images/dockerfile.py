"""Reads a Dockerfile into its instructions.

The form is that of https://docs.docker.com/reference/dockerfile/: comments, lines continued by a backslash, flags, and
here-documents of RUN. Which instructions can be carried out is decided by who does."""

import json
import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from environments.errors import TaskError

_MOST_CHARACTERS = 1 << 17  # as many as the kernel takes for one variable of a program

_HERE = re.compile(r"<<(-?)([\"']?)([A-Za-z_][A-Za-z0-9_]*)\2")
_FLAG = re.compile(r"--([a-z-]+)(?:=(\S*))?\s+")
_PIECE = re.compile(
    r"""'(?P<single>[^']*)'|"(?P<double>(?:\\.|[^"\\])*)"|(?P<escaped>\\.)|(?P<space>\s+)|(?P<plain>[^'"\\\s]+)"""
)
_ESCAPED = re.compile(r"""(\\["\\])""")
_VARIABLE = re.compile(r"\\(\$)|\$(?:([A-Za-z_]\w*)|\{([A-Za-z_]\w*)(?::([-+])([^}]*))?\})")


@dataclass(frozen=True)
class Instruction:
    """One instruction. `rest` is what follows the name and the flags; `scripts` are a RUN's here-documents."""

    line: int
    name: str
    rest: str
    flags: tuple[tuple[str, str], ...] = ()
    scripts: tuple[str, ...] = ()

    @property
    def listed(self) -> list[str] | None:
        """The words of an instruction in its JSON form, None for one in shell form."""
        if not self.rest.startswith("["):
            return None
        try:
            words = json.loads(self.rest)
        except json.JSONDecodeError:
            return None
        return words if isinstance(words, list) and all(isinstance(word, str) for word in words) else None

    @property
    def words(self) -> list[str]:
        """The words, in either form. Raises TaskError for a quote that is not closed."""
        if (listed := self.listed) is not None:
            return listed
        try:
            return shlex.split(self.rest)
        except ValueError as error:
            raise TaskError(f"Dockerfile, line {self.line}: {error}") from error

    def expanded_words(self, values: Mapping[str, str]) -> list[str]:
        """Return the words with their variables replaced, but for those in single quotes. Raises as `words`."""
        if (listed := self.listed) is not None:
            return [substituted(word, values) for word in listed]
        words, begins = [], True
        for is_space, piece in self._pieces(values):
            if is_space:
                begins = True
            elif begins:
                words.append(piece)
                begins = False
            else:
                words[-1] += piece
        return words

    def expanded(self, values: Mapping[str, str]) -> str:
        """Return all of it as one word, its variables replaced and its quotes removed. Raises as `words`."""
        return "".join(piece for _, piece in self._pieces(values))

    def _pieces(self, values: Mapping[str, str]) -> Iterator[tuple[bool, str]]:
        """Yield spaces and what stands between them, their variables replaced. Raises TaskError for too much of it."""
        self.words  # noqa: B018 - which raises for a quote that is not closed
        left = _MOST_CHARACTERS + len(self.rest)
        for match in _PIECE.finditer(self.rest):
            piece = match["space"] or _piece(match, values)
            left -= len(piece)
            if left < 0:
                raise _too_long()
            yield bool(match["space"]), piece


def _piece(match: "re.Match[str]", values: Mapping[str, str]) -> str:
    """Return what a piece of a word stands for."""
    if match["single"] is not None:
        return match["single"]
    if match["double"] is not None:
        parts = _ESCAPED.split(match["double"])
        return "".join(part[1] if _ESCAPED.fullmatch(part) else substituted(part, values) for part in parts)
    return match["escaped"][1] if match["escaped"] else substituted(match["plain"], values)


def parse(text: str) -> list[Instruction]:
    """Return a Dockerfile's instructions. Raises TaskError, with the line."""
    if re.match(r"\s*#\s*escape\s*=\s*[^\\\s]", text, re.IGNORECASE):
        raise TaskError("Dockerfile, line 1: another escape character than the backslash is not understood")
    found = list(_instructions(text.splitlines()))
    if not found or next((one.name for one in found if one.name != "ARG"), None) != "FROM":
        raise TaskError("Dockerfile: the first instruction is not FROM")
    return found


def _instructions(lines: list[str]) -> Iterator[Instruction]:
    number = 0
    while number < len(lines):
        start = number
        logical, number = _logical_line(lines, number)
        if not logical:
            continue
        name, *others = logical.split(maxsplit=1)
        name, rest = name.upper(), others[0] if others else ""
        flags = []
        while match := _FLAG.match(rest + " "):
            flags.append((match[1], match[2] or ""))
            rest = rest[match.end() :].strip()
        scripts: list[str] = []
        if name in ("RUN", "COPY"):
            for dash, _, ending in _HERE.findall(rest):
                script, number = _here_document(lines, number, ending, bool(dash), start + 1)
                scripts.append(script)
        yield Instruction(start + 1, name, rest, tuple(flags), tuple(scripts))


def _logical_line(lines: list[str], number: int) -> tuple[str, int]:
    """Return the instruction that begins at a line, its continuations joined, and the number of the line after it."""
    pieces: list[str] = []
    while number < len(lines):
        line = lines[number]
        number += 1
        if line.lstrip().startswith("#") or (pieces and not line.strip()):
            if not pieces:
                break
            continue
        stripped = line.rstrip()
        if not stripped.endswith("\\"):
            pieces.append(stripped)
            break
        pieces.append(stripped[:-1])
    return "".join(pieces).strip(), number


def _here_document(lines: list[str], number: int, ending: str, strips: bool, start: int) -> tuple[str, int]:
    body: list[str] = []
    while number < len(lines):
        line = lines[number].lstrip("\t") if strips else lines[number]
        number += 1
        if line == ending:
            return "\n".join(body) + "\n", number
        body.append(line)
    raise TaskError(f"Dockerfile, line {start}: the here-document {ending} does not end")


def substituted(text: str, values: Mapping[str, str]) -> str:
    """Return a text with `$NAME`, `${NAME}`, `${NAME:-else}` and `${NAME:+then}` replaced, an unset one by nothing.

    Raises TaskError for one that grows too long: a variable that says itself twice doubles with each line."""
    left = _MOST_CHARACTERS

    def value(match: re.Match[str]) -> str:
        nonlocal left
        stands = _stands_for(match, values)
        left -= len(stands)
        if left < 0:
            raise _too_long()
        return stands

    return _VARIABLE.sub(value, text)


def _stands_for(variable: "re.Match[str]", values: Mapping[str, str]) -> str:
    if variable[1]:
        return "$"
    held = values.get(variable[2] or variable[3], "")
    if variable[4] == "+":
        return variable[5] if held else ""
    return held or variable[5] or ""


def _too_long() -> TaskError:
    return TaskError(f"Dockerfile: variables say more than {_MOST_CHARACTERS} characters")


def pairs(instruction: Instruction, values: Mapping[str, str]) -> dict[str, str]:
    """Return what ENV sets, also in its older form `ENV NAME value`. Raises TaskError."""
    words = instruction.words
    if words and "=" not in words[0]:
        name, *value = instruction.rest.split(maxsplit=1)
        return {name: replace(instruction, rest="".join(value)).expanded(values)}
    if not all("=" in word for word in words):
        raise TaskError(f"Dockerfile, line {instruction.line}: ENV is written NAME=value")
    return dict(word.split("=", 1) for word in instruction.expanded_words(values))
