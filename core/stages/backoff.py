"""Waits before something is tried again: longer each time."""

import random
import time
from collections.abc import Callable

from core.settings import StageSettings


class Backoff:
    """Waits that double up to a bound.

    Each is somewhat shorter by chance, so that stages that fell together do not all get up together."""

    def __init__(self, first_s: float, most_s: float) -> None:
        self._first_s, self._most_s = first_s, most_s
        self._in_a_row = 0

    def wait_s(self) -> float:
        doubled = self._first_s * 2.0 ** min(self._in_a_row, 64)
        self._in_a_row += 1
        return min(doubled, self._most_s) * random.uniform(0.5, 1.0)

    def is_over(self) -> None:
        """Begin with a first wait again, because it went well."""
        self._in_a_row = 0


class Restarts:
    """The restarts of one stage, and the waits between them.

    A stage that had been well for a while begins with a first wait again."""

    def __init__(self, settings: StageSettings, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._well_s, self._monotonic = settings.well_s, monotonic
        self._backoff = Backoff(settings.restart_s, settings.most_restart_s)
        self._began_s = monotonic()
        self.count = 0

    def began(self) -> None:
        self._began_s = self._monotonic()

    def wait_s(self) -> float:
        """Return how long a stage that has just ended waits before it begins again."""
        if self._monotonic() - self._began_s >= self._well_s:
            self._backoff.is_over()
        self.count += 1
        return self._backoff.wait_s()
