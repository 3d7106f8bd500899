"""Time."""

from datetime import datetime
from typing import Protocol


class Clock(Protocol):
    def now(self) -> datetime:
        """UTC, timezone-aware. Replay takes it from the log."""
        ...

    def monotonic(self) -> float:
        """Seconds, for durations."""
        ...
