"""The steps of a process' start: all of them in a file, and for who waits at a terminal one line that is rewritten."""

import logging
import os
import shutil
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

EVERY_STEP: Final = "ONWARD_EVERY_STEP"
"""With this in its environment a process shows each step on a line of its own, and so do those that it starts."""
_BEGAN_S = time.monotonic()  # importing this is the first that the program does
_EVERY_S = 2.0  # between two words of what goes on
_CLEARED = "\x1b[2K"
logger = logging.getLogger(__name__)


@dataclass
class _Telling:
    """How this process tells its steps. Before anybody says whose start it is, each is a line."""

    file: Path | None = None
    shown: Literal["all", "latest", "last", "none"] = "all"
    is_line_there: bool = False


_telling = _Telling()


def show_every_step() -> None:
    """Show each step of this process, and of those that it starts, on a line of its own."""
    os.environ[EVERY_STEP] = "1"


def tell_steps(folder: Path, process: str, *, is_child: bool) -> None:
    """Keep the steps in a file of this folder from now on, instead of those of the last start.

    They are shown by a line that is rewritten, if this is a terminal, and none are shown of a process that another one
    started: that one says when all is there."""
    _telling.file = folder / f"{process}.log"
    if os.environ.get(EVERY_STEP):
        _telling.shown = "all"
    elif is_child:
        _telling.shown = "none"
    else:
        _telling.shown = "latest" if sys.stderr.isatty() else "last"
    try:
        folder.mkdir(exist_ok=True)
        _telling.file.unlink(missing_ok=True)
    except OSError as error:
        _do_without(error)


def say_step(process: str, done: str, *, is_last: bool = False) -> None:
    """Say what of the process' start is done, and how many seconds after its beginning."""
    said = f"{process}: {done} {since_start_s():.1f} s"
    _keep(said)
    if _telling.shown == "all" or (is_last and _telling.shown != "none"):
        clear_line()
        sys.stderr.write(f"{said}\n")
    elif _telling.shown == "latest":
        width = shutil.get_terminal_size().columns - 1
        sys.stderr.write(f"{_CLEARED}{said[:width]}\r")
        _telling.is_line_there = True
    sys.stderr.flush()


def clear_line() -> None:
    """Take away the line that is rewritten, since something else is printed now."""
    if _telling.is_line_there:
        _telling.is_line_there = False
        sys.stderr.write(_CLEARED)
        sys.stderr.flush()


def since_start_s() -> float:
    return time.monotonic() - _BEGAN_S


def _keep(said: str) -> None:
    if _telling.file is None:
        return
    try:
        with _telling.file.open("a", encoding="utf-8") as file:
            file.write(f"{said}\n")
    except OSError as error:
        _do_without(error)


def _do_without(error: OSError) -> None:
    """Go on with the start where there is no place for its steps, as on a full disk."""
    logger.warning("%s: %s: the steps of this start are not kept", _telling.file, error.strerror)
    _telling.file = None


class StepProgress:
    """A word now and then about a step that takes long: how much of it is done, and how fast."""

    def __init__(self, process: str, doing: str, size_bytes: int) -> None:
        self._process, self._doing, self._size_bytes = process, doing, size_bytes
        self._began: tuple[float, float] | None = None  # when it was first called, and with what
        self._said_s = 0.0

    def __call__(self, share: float) -> None:
        """Say that this share of the step is done."""
        now_s = time.monotonic()
        if self._began is None:
            self._began, self._said_s = (now_s, share), now_s
        elif now_s - self._said_s >= _EVERY_S:
            self._said_s = now_s
            rate = (share - self._began[1]) * self._size_bytes / 1e6 / (now_s - self._began[0])
            say_step(self._process, f"{self._doing}, {share:.0%} at {rate:,.0f} MB/s,")
