"""The lines by which a process says how far its start has come, for who waits for it."""

import sys
import time

_BEGAN_S = time.monotonic()  # importing this is the first that the program does
_EVERY_S = 2.0  # between two lines of what goes on


def say_step(process: str, done: str) -> None:
    """Print what of the process' start is done, and how many seconds after its beginning."""
    sys.stderr.write(f"{process}: {done} {time.monotonic() - _BEGAN_S:.1f} s\n")
    sys.stderr.flush()


class Progress:
    """A line now and then about a step that takes long: how much of it is done, and how fast."""

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
