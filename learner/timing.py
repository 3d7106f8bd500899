"""Timing of a learner. These figures are the machine's: nothing else of a version depends on them."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from core.operations import costs

SECONDS = costs.SECONDS
"""Prefix of a figure: seconds since the version before, by what they were spent on."""
DOINGS = ("waiting", "reading", "updating", "publishing", "saving")
DISK_BYTES = "checkpoint_disk_bytes"
"""A figure: what the learner's directory takes of the disk."""


class Pace:
    """The time spent `waiting` for rewards, `updating`, `publishing`, `saving` a checkpoint, or `reading` what came.

    The last is all else."""

    def __init__(self, now_s: Callable[[], float] = time.perf_counter) -> None:
        self._now_s = now_s
        self._doing, self._since_s = "reading", now_s()
        self._spent_s = dict.fromkeys(DOINGS, 0.0)

    @contextmanager
    def doing(self, what: str) -> Iterator[None]:
        before = self.turn_to(what)
        try:
            yield
        finally:
            self.turn_to(before)

    def turn_to(self, what: str) -> str:
        """Switch to another activity; return the one before."""
        now_s, before = self._now_s(), self._doing
        self._spent_s[before] += now_s - self._since_s
        self._doing, self._since_s = what, now_s
        return before

    def take(self, tokens: float, positions: float, flops: int, peak_tflops: float | None) -> dict[str, float]:
        """Return the figures since the last call, for a version whose update has run.

        The update learned from `tokens` sampled tokens and put `positions` through a model at `flops` operations each.
        Figures: seconds by activity, `tokens_per_s` and `positions_per_s` of the update, and `mfu`, the share of the
        device's peak, when that is known (arXiv:2204.02311, appendix B, without attention)."""
        self.turn_to(self._doing)
        spent_s, self._spent_s = self._spent_s, dict.fromkeys(DOINGS, 0.0)
        figures = {f"{SECONDS}{name}": seconds for name, seconds in spent_s.items()}
        figures["tokens_per_s"] = tokens / spent_s["updating"]
        figures["positions_per_s"] = positions / spent_s["updating"]
        if peak_tflops is not None:
            figures["mfu"] = figures["positions_per_s"] * flops / (peak_tflops * 1e12)
        return figures


def is_of_machine(figure: str) -> bool:
    return figure.startswith(SECONDS) or figure in ("tokens_per_s", "positions_per_s", "mfu", DISK_BYTES)
