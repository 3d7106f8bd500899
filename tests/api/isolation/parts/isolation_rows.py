"""The row that `FULL=1` keeps: how many requests asked for what is another's, and how many went wrong."""

import os
from collections.abc import Sequence

from bench.table import Row, report


class IsolationRows:
    """A count of the rounds, in each of which one organisation asks every route about all others."""

    def __init__(self) -> None:
        self._asked = self._pairs = self._wrong = 0

    def tell(self, asked: int, pairs: int, wrong: Sequence[str]) -> None:
        self._asked += asked
        self._pairs += pairs
        self._wrong += len(wrong)

    def keep(self, routes: int) -> None:
        if os.environ.get("FULL") == "1":
            unit = f"of {self._asked} requests by {routes} routes, {self._pairs} ordered pairs"
            what = "answers that tell of another organisation, and changes of what it has"
            report("isolation", [Row(what, self._wrong, unit, goal=0, holds=self._wrong == 0)])
