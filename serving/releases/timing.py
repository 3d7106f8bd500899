"""From an outcome's arrival to the first token of a version that learned from it."""

import threading
from collections import deque
from collections.abc import Iterable
from datetime import datetime

import numpy as np

from core import telemetry
from core.ids import Version

_REMEMBERED = 100_000


class LoopTimer:
    """Thread-safe: the controller says which outcomes a version learned from, the engine when it first spoke."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: list[datetime] = []  # of versions that were never served: whoever serves next learned from them
        self._arrivals: dict[Version, list[datetime]] = {}
        self._seconds: deque[float] = deque(maxlen=_REMEMBERED)

    def learned(self, arrivals: Iterable[datetime]) -> None:
        with self._lock:
            self._waiting += arrivals

    def goes_live(self, version: Version) -> None:
        """Before the switch: the first token may come at once."""
        with self._lock:
            self._arrivals = {version: self._waiting}
            self._waiting = []

    def first_token(self, version: Version, at: datetime) -> None:
        with self._lock:
            seconds = [(at - arrival).total_seconds() for arrival in self._arrivals.pop(version, ())]
            self._seconds += seconds
        for value in seconds:
            telemetry.FEEDBACK_TO_SERVED_SECONDS.observe(value)

    def publish_quantiles(self) -> None:
        """Off the engine's thread: it takes milliseconds once there are many."""
        with self._lock:
            values = np.array(self._seconds)
        if len(values):
            for quantile in (0.5, 0.99):
                value = float(np.quantile(values, quantile))
                telemetry.FEEDBACK_TO_SERVED_QUANTILE.labels(quantile=str(quantile)).set(value)
