"""Counts that begin anew every minute; the windows of one process."""

from collections.abc import Sequence

from api.live_state.recent import RecentlyUsed, bytes_of
from core.ports import CountWindow


class Windows:
    """The counts, of which those that were used longest ago are forgotten first."""

    def __init__(self, max_bytes: int) -> None:
        self._counts: RecentlyUsed[int] = RecentlyUsed(max_bytes)

    def spend(self, windows: Sequence[CountWindow]) -> list[int]:
        had = [self._counts.get(window.name) or 0 for window in windows]
        if not any(passes(window, count) for window, count in zip(windows, had, strict=True)):
            for window, count in zip(windows, had, strict=True):
                if window.add:
                    self._counts.put(window.name, count + window.add, bytes_of(window.name))
        return had


def passes(window: CountWindow, had: int) -> bool:
    """Return whether a window that has had so much would pass its limit."""
    return window.limit is not None and had + max(window.add, 1) > window.limit
