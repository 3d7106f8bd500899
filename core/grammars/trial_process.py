"""The process in which a grammar is compiled for the first time.

    python -m core.grammars.trial_process MODEL SECONDS BYTES

It reads one request a line, and answers each by a line. What a grammar may take is bounded by the system: a process
that passes a bound ends, and its parent reads from its exit which one that was."""

import os
import resource
import sys
import time
from pathlib import Path
from typing import BinaryIO, Final

import msgspec

from core.errors import InvalidRequest
from core.events import Grammar
from core.grammars.library import Grammars

_NICE: Final = 10


class GrammarTrial(msgspec.Struct, frozen=True):
    """A grammar to be compiled, with the ids at which an answer may end."""

    text: str
    stop_token_ids: tuple[int, ...]


class GrammarVerdict(msgspec.Struct, frozen=True):
    """`refused`: what the library says against it, with the error's code; None, without one: nothing."""

    refused: str | None = None
    code: str = ""


def main(directory: Path, longest_s: int, most_bytes: int, asked: BinaryIO, told: BinaryIO) -> None:
    """Answer until nobody asks any more. `longest_s`: of a processor, for each grammar; `most_bytes`: its memory."""
    grammars = Grammars(directory)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for line in asked:
        trial = msgspec.json.decode(line, type=GrammarTrial)
        grammars.tokenizer(trial.stop_token_ids)  # read once, and not at the cost of the first grammar
        os.setpriority(os.PRIO_PROCESS, 0, max(_NICE, os.nice(0)))  # what strangers wrote gives way to all else
        _bound(resource.RLIMIT_CPU, int(time.process_time()) + longest_s + 1)
        _bound(resource.RLIMIT_AS, _address_space() + most_bytes)
        verdict = _tried(grammars, trial)
        _bound(resource.RLIMIT_AS, resource.RLIM_INFINITY)
        _bound(resource.RLIMIT_CPU, resource.RLIM_INFINITY)
        told.write(msgspec.json.encode(verdict) + b"\n")
        told.flush()


def _tried(grammars: Grammars, trial: GrammarTrial) -> GrammarVerdict:
    try:
        grammars.compile(Grammar(text=trial.text), trial.stop_token_ids)
    except InvalidRequest as error:
        return GrammarVerdict(error.message, error.code)
    return GrammarVerdict()


def _bound(kind: int, most: int) -> None:
    _, hard = resource.getrlimit(kind)
    resource.setrlimit(kind, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard))


def _address_space() -> int:
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    return pages * resource.getpagesize()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.stdin.buffer, sys.stdout.buffer)
