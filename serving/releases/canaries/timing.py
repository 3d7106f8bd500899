"""The time from an outcome's arrival to the first token of a version that learned from it."""

import threading
from collections import deque
from datetime import datetime

import numpy as np

from core import telemetry
from core.events import PolicyVersion
from core.ids import PolicyRef

_REMEMBERED = 100_000
_QUANTILES = (0.5, 0.99)


class LoopTimer:
    """Thread-safe: the log says which outcomes a version learned from, the engine when it first spoke; in any order.

    A version that never served hands its outcomes on to the first of its descendants that does. Outcomes that arrived
    before `since` are counted and not timed: they waited for the service, which was not there, and not for learning.
    So are those of a version that an operator held.
    """

    def __init__(self, since: datetime) -> None:
        self._lock = threading.Lock()
        self._since = since
        self._arrivals: dict[
            PolicyRef, tuple[PolicyRef | None, tuple[datetime, ...]]
        ] = {}  # parent, and its own outcomes
        self._held: set[PolicyRef] = set()  # they, or a version that learned from them, wait or waited for an operator
        self._spoke: dict[PolicyRef, datetime] = {}  # before it was known what they learned
        self._seconds: deque[float] = deque(maxlen=_REMEMBERED)
        self._told = True  # the quantiles are those of all seconds

    def published(self, policy: PolicyVersion) -> None:
        with self._lock:
            self._arrivals.setdefault(policy.version, (policy.parent, policy.outcome_arrivals))
            at = self._spoke.pop(policy.version, None)
        if at is not None:
            self.first_token(policy.version, at)

    def held_until(self, at: datetime) -> None:
        """Leave out what arrived before `at` and is not served yet: an order or an alarm held releases until then."""
        with self._lock:
            self._since = max(self._since, at)

    def held(self, version: PolicyRef) -> None:
        """Leave out what a version, and its line, learned and nobody was served yet: an operator holds the version."""
        with self._lock:
            at: PolicyRef | None = version
            while at in self._arrivals:
                self._held.add(at)
                at = self._arrivals[at][0]

    def first_token(self, version: PolicyRef, at: datetime) -> None:
        with self._lock:
            if version not in self._arrivals:
                self._spoke[version] = at
                return
            taken = self._take(version)
            timed = [arrival for arrival, is_held in taken if not is_held and arrival >= self._since]
            seconds = [(at - arrival).total_seconds() for arrival in timed]
            self._seconds += seconds
            self._told = self._told and not seconds
        for value in seconds:
            telemetry.FEEDBACK_TO_SERVED_SECONDS.observe(value)
        telemetry.FEEDBACK_HELD.inc(len(taken) - len(seconds))

    def _take(self, version: PolicyRef) -> list[tuple[datetime, bool]]:
        """Its own outcomes and those of its line that no version has answered yet, and whether each was held.

        Each is taken once."""
        taken: list[tuple[datetime, bool]] = []
        at: PolicyRef | None = version
        while at in self._arrivals:
            parent, arrivals = self._arrivals[at]
            self._arrivals[at] = (None, ())  # what lies before it was taken, too
            taken += [(arrival, at in self._held) for arrival in arrivals]
            self._held.discard(at)
            at = parent
        return taken

    def publish_quantiles(self) -> None:
        """Publish quantiles when there is something new, off the engine's thread: many values take milliseconds."""
        with self._lock:
            values = np.array(() if self._told else self._seconds)
            self._told = True
        if len(values):
            for quantile, value in zip(_QUANTILES, np.quantile(values, _QUANTILES), strict=True):
                telemetry.FEEDBACK_TO_SERVED_QUANTILE.labels(quantile=str(quantile)).set(float(value))
