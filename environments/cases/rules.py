"""The rules on files, looked at in a process of its own, within bounds of time and memory: whoever waits can end it.

The bound on time is of the processor, which a busy machine does not use up."""

import base64
import json
import pickle
import resource
import signal
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from environments.cases.apart import command_of
from environments.cases.duplicates import duplicates
from environments.errors import InfrastructureFailure
from environments.tasks.commands import said

_NO_TEXT: Final = "\0"  # in a file that is none, such as a compiled one


@dataclass(frozen=True)
class Rules:
    """What the files must be like. Of `most_added_lines`, a line that was moved is none that was added."""

    duplicates: bool = False
    most_added_lines: int | None = None


@dataclass(frozen=True)
class Files:
    """The texts of a working copy's files, by their paths: those that the work changed, and all that rules compare."""

    before: Mapping[str, str]
    after: Mapping[str, str]


@dataclass(frozen=True)
class Most:
    """What looking at one piece of work may take. `seconds` are the processor's; `waited_seconds` are a clock's."""

    seconds: int = 120
    memory_bytes: int = 4 << 30
    waited_seconds: float = 900.0


class _Over(Exception):
    """The seconds are used up."""


async def looked_at(files: Files, rules: Rules, most: Most) -> tuple[str, ...]:
    """Return, in words, which rules the files do not keep. Work that takes too much to compare keeps none.

    Raises InfrastructureFailure where what was there before the work takes too much already, or this machine fails."""
    told = await said(command_of(__name__), most.waited_seconds, "verifier", pickle.dumps((files, rules, most)))
    answer: dict[str, Any] = json.loads(base64.b64decode(told))
    if answer["over"] is None:
        return tuple(answer["flaws"])
    if not answer["was_read"]:
        raise InfrastructureFailure("verifier", f"what was there before the work takes {answer['over']} to look at")
    return (f"what it left takes {answer['over']} to compare",)


def flaws(files: Files, rules: Rules, was_read: Callable[[], None] = lambda: None) -> tuple[str, ...]:
    """Return the same, in this process. `was_read` is called once what was there has been looked at."""
    found: list[str] = []
    if rules.duplicates:
        found += duplicates(_python(files.before), _python(files.after), was_read)
    was_read()
    if rules.most_added_lines is not None:
        added = added_lines(files)
        if added > rules.most_added_lines:
            found.append(f"it adds {added} lines, and {rules.most_added_lines} are allowed")
    return tuple(found)


def added_lines(files: Files) -> int:
    """Return how many lines the text files have, all together, that they did not have; wherever each stands."""
    return (_lines(files.after) - _lines(files.before)).total()


def _lines(files: Mapping[str, str]) -> Counter[str]:
    found = Counter[str]()
    for text in files.values():
        if text and _NO_TEXT not in text:
            found.update(text.removesuffix("\n").split("\n"))
    return found


def _python(files: Mapping[str, str]) -> dict[str, str]:
    return {path: text for path, text in files.items() if path.endswith(".py")}


def _end(number: int, frame: object) -> None:
    signal.signal(signal.SIGXCPU, signal.SIG_IGN)  # it comes again each second
    raise _Over


def main() -> None:
    files, rules, most = pickle.load(sys.stdin.buffer)
    signal.signal(signal.SIGXCPU, _end)
    resource.setrlimit(resource.RLIMIT_AS, (most.memory_bytes, most.memory_bytes))
    resource.setrlimit(resource.RLIMIT_CPU, (most.seconds, 2 * most.seconds + 10))
    read: list[bool] = []
    found: tuple[str, ...] = ()
    over = None
    try:
        found = flaws(files, rules, lambda: read.append(True))
    except _Over:
        over = f"more than {most.seconds} s"
    except MemoryError:
        over = f"more than {most.memory_bytes >> 20} MiB of memory"
    answer = {"flaws": found, "over": over, "was_read": bool(read)}
    print(base64.b64encode(json.dumps(answer).encode()).decode())
