"""When what ended is started again: later each time, unless it had been well."""

import random
import time
from collections.abc import Callable

from core.settings import StageSettings


class Restarts:
    """Of one stage. The waits double up to a bound, each somewhat shorter by chance, so that not all that fell together
    gets up together."""

    def __init__(self, settings: StageSettings, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._settings, self._monotonic = settings, monotonic
        self._began_s = monotonic()
        self._in_a_row = 0
        self.count = 0

    def began(self) -> None:
        self._began_s = self._monotonic()

    def wait_s(self) -> float:
        """It has ended: how long until it is to begin again."""
        if self._monotonic() - self._began_s >= self._settings.well_s:
            self._in_a_row = 0
        doubled = self._settings.restart_s * 2.0 ** min(self._in_a_row, 64)
        self._in_a_row += 1
        self.count += 1
        return min(doubled, self._settings.most_restart_s) * random.uniform(0.5, 1.0)
