"""Grammars of strangers are compiled in a process of their own before anybody else compiles them.

The library counts most of its work, and not all: some schemas of a kilobyte take minutes and gigabytes. A thread that
compiles one cannot be ended, a process can. What has passed takes as little wherever it is compiled after that."""

import os
import queue
import select
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections import OrderedDict
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Final

import msgspec
from blake3 import blake3

from core.errors import InvalidRequest, Overloaded
from core.events import Grammar
from core.grammars.library import MAX_GRAMMAR_BYTES, TOO_COMPLEX
from core.grammars.trial_process import GrammarTrial, GrammarVerdict

PROCESSES: Final = 2
LONGEST_S: Final = 5
"""Seconds of a processor's time that compiling a grammar may take."""
MOST_BYTES: Final = 32 << 20
"""Memory that it may take. An engine keeps up to 32 compiled grammars."""
WAIT_S: Final = 20.0
"""Seconds of a clock in which an answer's grammar is tried, with what is at fault in it: a busy machine gives a process
its seconds of a processor later."""
_MOST_KNOWN: Final = 4096
_RETRY_AFTER_S: Final = 5
_TOO_SLOW: Final = GrammarVerdict(f"compiling it was not over after {WAIT_S:.0f} s", TOO_COMPLEX)


class Trials:
    """The trials of one model's grammars. Thread-safe; as many run at once as there are processes."""

    def __init__(
        self, directory: Path, processes: int = PROCESSES, longest_s: int = LONGEST_S, most_bytes: int = MOST_BYTES
    ) -> None:
        """Start nothing before it is needed. `directory`: the model's, with its tokenizer."""
        self._idle: queue.LifoQueue[_Process] = queue.LifoQueue()  # a process is started only while all others work
        for _ in range(processes):
            self._idle.put(_Process(directory, longest_s, most_bytes))
        self._lock = threading.Lock()
        self._known: OrderedDict[bytes, GrammarVerdict] = OrderedDict()

    def check(
        self, grammar: Grammar, stop_token_ids: tuple[int, ...], until_s: float, scope: str | None = None
    ) -> None:
        """Return once the grammar is known to compile within the bounds, and by `until_s` of the monotonic clock.

        What is known is known to the same `scope` alone: another's grammar that came back at once would tell of it.
        Raises InvalidRequest where it does not, Overloaded where that could not be found out now."""
        if len(grammar.text.encode()) > MAX_GRAMMAR_BYTES:
            raise InvalidRequest(f"the grammar is larger than {MAX_GRAMMAR_BYTES} bytes", code=TOO_COMPLEX)
        asked = msgspec.json.encode(GrammarTrial(grammar.text, stop_token_ids))
        key = blake3((scope or "").encode() + b"\0" + asked).digest()
        verdict = self._verdict(key, asked, until_s)
        if verdict.refused is not None:
            raise InvalidRequest(verdict.refused, code=verdict.code)

    def _verdict(self, key: bytes, asked: bytes, until_s: float) -> GrammarVerdict:
        with self._lock:
            known = self._known.get(key)
            if known is not None:
                self._known.move_to_end(key)  # another's many grammars displace what nobody asks for any more
        if known is not None:
            return known
        try:
            process = self._idle.get(timeout=max(0.0, until_s - time.monotonic()))
        except queue.Empty as error:
            raise Overloaded("too many grammars are being compiled; try again in a moment", _RETRY_AFTER_S) from error
        try:
            verdict = process.ask(asked, until_s)
        finally:
            self._idle.put(process)
        if verdict == _TOO_SLOW:  # of the machine, perhaps
            return verdict
        with self._lock:
            self._known[key] = verdict
            while len(self._known) > _MOST_KNOWN:
                self._known.popitem(last=False)
        return verdict


class _Process:
    """One process, which is started for a question and again for the next one after it ended."""

    def __init__(self, directory: Path, longest_s: int, most_bytes: int) -> None:
        module = "core.grammars.trial_process"
        self._command = [sys.executable, "-m", module, str(directory), str(longest_s), str(most_bytes)]
        self._ends = {  # a signal of the system, and what a Rust program does that gets no memory
            -signal.SIGXCPU: f"compiling it takes more than {longest_s} s",
            -signal.SIGABRT: f"compiling it takes more than {most_bytes >> 20} MiB",
        }
        self._running: subprocess.Popen[bytes] | None = None

    def ask(self, asked: bytes, until_s: float) -> GrammarVerdict:
        """Return the answer. A process that gives none is ended.

        Raises Overloaded where it ended by something else than the grammar."""
        process = self._running or self._start()
        answer = _answer(process, asked, until_s)
        if answer:
            return msgspec.json.decode(answer, type=GrammarVerdict)
        self._running = None
        was_slow = process.poll() is None
        _end(process)
        if was_slow:
            return _TOO_SLOW
        why = self._ends.get(process.returncode)
        if why is None:
            why = f"a grammar could not be compiled: its process ended with {process.returncode}"
            raise Overloaded(why, _RETRY_AFTER_S)
        return GrammarVerdict(why, TOO_COMPLEX)

    def _start(self) -> "subprocess.Popen[bytes]":
        pipe = subprocess.PIPE
        self._running = subprocess.Popen(self._command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL)
        weakref.finalize(self, _end, self._running)
        return self._running


def _answer(process: "subprocess.Popen[bytes]", asked: bytes, until_s: float) -> bytes:
    """Return the line that answers one, empty where the process ended or took too long."""
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        process.stdin.write(asked + b"\n")
        process.stdin.flush()
    except BrokenPipeError:
        return b""
    answer = b""
    while not answer.endswith(b"\n"):
        if not select.select([process.stdout], [], [], max(0.0, until_s - time.monotonic()))[0]:
            return b""
        read = os.read(process.stdout.fileno(), 1 << 16)
        if not read:
            process.wait()
            return b""
        answer += read
    return answer


def _end(process: "subprocess.Popen[bytes]") -> None:
    if process.poll() is None:
        process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with suppress(BrokenPipeError):
                pipe.close()


@lru_cache(maxsize=4)
def trials_of(directory: Path) -> Trials:
    """Return the trials of the model in `directory`, which whoever asks for them in one process shares."""
    return Trials(directory)
