"""A counter of how long engines were busy; the rest of the time they were idle."""

import time

from core import telemetry


class BusyTime:
    """The busy time of one engine's thread, or of one process's requests to a fleet. Not thread-safe."""

    def __init__(self) -> None:
        self._running, self._since_s = 0, 0.0

    def running(self, count: int) -> None:
        """Note that so many requests run from now on."""
        now_s = time.monotonic()
        if self._running:
            telemetry.BUSY_SECONDS.inc(now_s - self._since_s)
        self._running, self._since_s = count, now_s
        telemetry.RUNNING_REQUESTS.set(count)

    def one_more(self) -> None:
        self.running(self._running + 1)

    def one_less(self) -> None:
        self.running(self._running - 1)
