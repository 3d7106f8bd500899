"""The commands that agents run in their sessions: which of them can be tests, and why others cannot."""

import posixpath
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import re2  # type: ignore[import-untyped]

from core.text.json_objects import object_of
from environments.harness.tools.programs import RUN_TESTS
from environments.harness.tools.tool import Commands

_EXIT_CODE: Final = re2.compile(r"exit code (-?\d{1,3})(?:$|: )")  # the first line of a result of our harness
_CODE_FIELDS: Final = ("exit_code", "exitCode", "returncode")
# Programs whose exit code says whether something is right.
_TELLS: Final = re2.compile(
    r"^(?:[A-Z_][A-Z_0-9]*=\S* )*(?:"
    r"(?:python3?|uv run|poetry run|pdm run)(?: -[IBsEu]+)* (?:-m )?(?:pytest|unittest|doctest|mypy|ruff check)\b|"
    r"(?:py\.?test|nose2|mypy|pyright)\b|ruff (?:check|format --check)|"
    r"(?:npm|pnpm|yarn|bun)(?: run)? (?:test|lint|check|typecheck)\b|"
    r"(?:npx )?(?:vitest run|jest|mocha|tsc --noEmit)\b|"
    r"go (?:test|vet)\b|cargo (?:test|check|clippy)\b|make (?:\S*test\S*|check|lint)\b|ctest\b|"
    r"(?:mvn|gradle|\./gradlew) (?:\S+ )*(?:test|check)\b|bundle exec r(?:spec|ake test)\b|rspec\b|phpunit\b|"
    r"(?:sh|bash) \S*test\S*|\./\S*test\S*|test -|grep -q)"
)
_RUNS: Final = re2.compile(r"^(?:[A-Z_][A-Z_0-9]*=\S* )*(?:(?:sh|bash) |\./)(\S+)")
_NETWORK: Final = re2.compile(
    r"\b(curl|wget|ssh|scp|rsync|nc|telnet|ping|docker|podman|kubectl|aws|gcloud|gh)\b|\w+://|"
    r"\b(pip3?|npm|pnpm|yarn|apt|apt-get|brew|gem|cargo|go|conda|poetry|uv|bundle) "
    r"(install|add|i|ci|get|update|sync)\b|"
    r"\bgit (clone|fetch|pull|push|remote|submodule)\b"
)
_DESTROYS: Final = re2.compile(
    r"\b(rm|rmdir|shred|mkfs\S*|dd|truncate|kill|pkill|killall|reboot|shutdown|sudo|su|chown|mount|umount)\b|"
    r"\bgit (reset|checkout|clean|restore|stash|rebase|commit)\b|\bfind\b.*-delete|>"
)
_OF_A_MACHINE: Final = re2.compile(
    r"(?:^|[\s='\"])(?:/\w|~)|\$|`|\blocalhost\b|\b127\.0\.0\.1\b|"
    r"\b(systemctl|service|date|hostname|whoami|uname|nvidia-smi)\b"
)
# Here the shell does not tell how each part ended: pipes, lists, and commands in the background.
_HIDES: Final = re2.compile(r"[|;&\n]")
_QUOTED: Final = re2.compile(r"'[^']*'|\"[^\"$`\\]*\"")
_LOOKS: Final = re2.compile(
    r"^(?:cd|ls|cat|head|tail|less|wc|grep|rg|find|pwd|which|file|stat|tree|echo|true|nl|sort|uniq|diff|"
    r"git (?:status|diff|log|show|blame|branch|ls-files|grep))\b"
)


@dataclass(frozen=True)
class Ran:
    """One run of a command. `moves`: how many earlier calls may have changed files; `is_told`: its result is known."""

    command: str
    exit_code: int | None
    moves: int
    is_told: bool
    by_helper: bool = False


def command_of(tool: str, arguments: Mapping[str, Any]) -> str | None:
    """Return the shell command that a call runs; None where it runs none."""
    command = arguments.get("command", arguments.get("cmd"))
    if isinstance(command, str) and not isinstance(arguments.get("path"), str):
        return command.strip()
    paths = arguments.get("paths", [])
    if tool == RUN_TESTS.name and arguments.keys() <= {"paths"} and isinstance(paths, list):
        return shlex.join([*Commands().test, *map(str, paths)])
    return None


def exit_code_of(result: str | None) -> int | None:
    """Return the exit code that a command's result states; None where it states none.

    What the command itself printed does not count."""
    said = object_of(result or "")
    if said is not None:
        codes = [said[name] for name in _CODE_FIELDS if isinstance(said.get(name), int)]
        return None if not codes or isinstance(codes[0], bool) else codes[0]
    found = _EXIT_CODE.match((result or "").partition("\n")[0])
    return None if found is None else int(found.group(1))


def doubt_of(ran: Ran, moves: int, workdir: str | None, *, changed_tests: bool) -> str | None:
    """Return why a command is no test; None where it is one. `moves`: the count of the whole session.

    `workdir`: the folder of the work, if known; any other absolute path belongs to the agent's machine."""
    said = _without_silence(ran.command)
    if workdir is not None:
        said = re2.sub(rf"{re2.escape(workdir)}($|[/\s'\"])", r".\1", said)
    bare = _QUOTED.sub("''", said)
    parts = [part.strip() for part in bare.split("&&")]
    for doubt, found in (
        ("no_result", not ran.is_told),
        ("no_exit_status", ran.exit_code is None),
        ("of_a_helper", ran.by_helper),
        ("network", _NETWORK.search(said)),
        ("destructive", _DESTROYS.search(said)),
        ("of_its_machine", _OF_A_MACHINE.search(said)),
        ("hides_its_end", _HIDES.search(bare.replace("&&", " "))),
        ("no_test", not _TELLS.match(parts[-1]) or not all(_TELLS.match(each) or _LOOKS.match(each) for each in parts)),
        ("failed", ran.exit_code != 0),
        ("changed_since", ran.moves < moves),
        ("tests_changed", changed_tests),
    ):
        if found:
            return doubt
    return None


def runs_one_of(command: str, paths: Iterable[str]) -> bool:
    """Return whether a command runs one of these files as a script: how it ends is what whoever wrote the file says."""
    runs = (_RUNS.match(part.strip()) for part in command.split("&&"))
    scripts = {posixpath.basename(found.group(1)) for found in runs if found}
    return not scripts.isdisjoint(map(posixpath.basename, paths))


def only_looks(command: str) -> bool:
    """Return whether a command changes no file, as far as its words tell."""
    bare = _QUOTED.sub("''", _without_silence(command))
    parts = re2.split(r"&&|\|\|?|;|\n", bare)
    is_quiet = not _DESTROYS.search(bare) and "-exec" not in bare and "-delete" not in bare
    return is_quiet and all(_LOOKS.match(part.strip()) or _TELLS.match(part.strip()) for part in parts if part.strip())


def _without_silence(command: str) -> str:
    """Return the command without redirections that only discard or join its output."""
    said: str = re2.sub(r"\s*(?:[12]|&)?>{1,2}\s*(?:/dev/null|&[12])", "", command)
    return said.strip()
