"""The end of a process: told by a signal, or because the process that started it is gone."""

import os
import signal
from collections.abc import Callable
from contextlib import suppress
from queue import Empty, SimpleQueue
from types import FrameType
from typing import TypeVar

from core.errors import Unavailable

AGAIN_S = 1.0  # after something that a process needs was away
T = TypeVar("T")


class Ending:
    """The end of a thread or a process, told from outside."""

    def __init__(self, parent: int | None = None) -> None:
        """`parent`: the process with which this one ends, by its number."""
        self._is_told, self._parent = False, parent
        self._wakes = SimpleQueue[None]()  # an Event's lock may be held by the very thread that a signal interrupts

    def is_due(self) -> bool:
        return self._is_told or self._parent not in (None, os.getppid())

    def tell(self) -> None:
        """Tell it to end; from any thread, or from a signal's handler."""
        self._is_told = True
        self._wakes.put(None)

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait at most that long, and return whether it was told to end."""
        with suppress(Empty):
            self._wakes.get(timeout=timeout_s)
            self._wakes.put(None)  # for whoever else waits
        return self._is_told

    def made(self, make: Callable[[], T], waits: Callable[[Unavailable], object]) -> T | None:
        """Return what `make` makes, once what it needs is there, or None when it is to end before.

        `waits` is told what is away."""
        while not self.is_due():
            try:
                return make()
            except Unavailable as error:
                waits(error)
                self.wait(AGAIN_S)
        return None


def told_by_signals(parent: int | None = None) -> Ending:
    """Return an Ending that SIGTERM and SIGINT tell, from here on."""
    ending = Ending(parent)

    def stop(_signal: int, _frame: FrameType | None) -> None:
        ending.tell()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    return ending


def ignore_signals(*numbers: signal.Signals) -> None:
    """Ignore signals, because another process tells this one when to end."""
    for number in numbers:
        signal.signal(number, signal.SIG_IGN)
