"""How a learner's time goes. These figures are the machine's: nothing else of a version depends on them."""

import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

SECONDS = "seconds_"
"""Prefix of a figure: seconds since the version before, by what they were spent on."""


class Pace:
    """`waiting` for rewards, `updating`, `publishing`, or `reading` what came."""

    def __init__(self, now_s: Callable[[], float] = time.perf_counter) -> None:
        self._now_s = now_s
        self._began_s = now_s()
        self._spent_s = Counter[str]()

    @contextmanager
    def doing(self, what: str) -> Iterator[None]:
        began_s = self._now_s()
        try:
            yield
        finally:
            self._spent_s[what] += self._now_s() - began_s  # type: ignore[assignment]

    def take(self, positions: float, flops: int, peak_tflops: float | None) -> dict[str, float]:
        """Figures since the last time, for a version whose update put so many positions through a model, at so many
        operations each: seconds by what was done, `positions_per_s`, and `mfu`, the share of the device's peak, where
        that is known (arXiv:2204.02311, appendix B, without attention)."""
        now_s = self._now_s()
        spent_s = {name: self._spent_s[name] for name in ("waiting", "updating", "publishing")}
        spent_s["reading"] = now_s - self._began_s - sum(spent_s.values())
        self._began_s, self._spent_s = now_s, Counter()
        figures = {f"{SECONDS}{name}": float(seconds) for name, seconds in spent_s.items()}
        figures["positions_per_s"] = positions / spent_s["updating"]
        if peak_tflops is not None:
            figures["mfu"] = figures["positions_per_s"] * flops / (peak_tflops * 1e12)
        return figures


def is_of_machine(figure: str) -> bool:
    return figure.startswith(SECONDS) or figure in ("positions_per_s", "mfu")
