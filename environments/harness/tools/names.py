"""The tools that look for things by their exact words: `find` (names of files) and `grep` (their lines)."""

from typing import Annotated, Final

import msgspec
from msgspec import Meta

from environments.harness.tools.tool import Bench, HarnessTool, Result, ToolRefused
from environments.sandboxes.sandbox import CommandResult

_LEFT_OUT: Final = (".git", "__pycache__", "node_modules", ".venv")
_MOST_NAMES: Final = 200
_MOST_LINES: Final = 100
_MOST_CHARACTERS: Final = 240  # of a line
_SECONDS: Final = 30.0

Text = Annotated[str, Meta(min_length=1)]


class Find(msgspec.Struct, forbid_unknown_fields=True):
    """List files and folders below `path` whose name matches a pattern of the shell, such as *.py."""

    name: Text = "*"
    path: Text = "."


class Grep(msgspec.Struct, forbid_unknown_fields=True):
    """Show the lines that match an extended regular expression.

    It looks in all files below `path`, or those whose name matches `files`, such as *.py."""

    pattern: Text
    path: Text = "."
    files: Text | None = None
    ignore_case: bool = False


async def _find(bench: Bench, asked: Find) -> Result:
    if "/" in asked.name:
        raise ToolRefused("name: a pattern for the name alone; say the folder with `path`")
    left_out = [part for name in _LEFT_OUT for part in ("-o", "-name", name)][1:]
    pruned = ("(", *left_out, ")", "-prune", "-o")
    ran = await bench.run(("find", _operand(asked.path), *pruned, "-name", asked.name, "-print"), _SECONDS)
    names = sorted(line.removeprefix("./") for line in _text(ran.stdout).splitlines())
    names = [name for name in names if name != asked.path]
    if not names:
        return _nothing(ran, f"no name below {asked.path} matches {asked.name}")
    return Result("\n".join(_first(names, _MOST_NAMES, "names")))


async def _grep(bench: Bench, asked: Grep) -> Result:
    options = ["-rnIE", *(f"--exclude-dir={name}" for name in _LEFT_OUT)]
    options += [f"--include={asked.files}"] if asked.files else []
    options += ["-i"] if asked.ignore_case else []
    ran = await bench.run(("grep", *options, "-e", asked.pattern, "--", _operand(asked.path)), _SECONDS)
    lines = [line.removeprefix("./") for line in _text(ran.stdout).splitlines()]
    if not lines:
        return _nothing(ran, f"no line below {asked.path} matches {asked.pattern}")
    lines = [line if len(line) <= _MOST_CHARACTERS else line[:_MOST_CHARACTERS] + "..." for line in lines]
    return Result("\n".join(_first(lines, _MOST_LINES, "lines", at_least=ran.cut_bytes > 0 or ran.timed_out)))


def _operand(path: str) -> str:
    return f"./{path}" if path.startswith("-") else path


def _nothing(ran: CommandResult, otherwise: str) -> Result:
    """Return why there is nothing: the program's own error, its time, or that nothing matches."""
    if ran.timed_out:
        raise ToolRefused(f"it took more than {ran.seconds:.0f} s: look in fewer files")
    if said := _text(ran.stderr).strip():
        raise ToolRefused(said)
    return Result(otherwise)


def _first(lines: list[str], most: int, what: str, *, at_least: bool = False) -> list[str]:
    left = len(lines) - most
    if left <= 0 and not at_least:
        return lines
    more = f"{'at least ' if at_least else ''}{max(left, 1)} more {what}"
    return [*lines[:most], f"[{more} left out: look for something narrower]"]


def _text(said: bytes) -> str:
    return said.decode(errors="replace")


FIND = HarnessTool("find", Find, _find, reads_only=True)
GREP = HarnessTool("grep", Grep, _grep, reads_only=True)
