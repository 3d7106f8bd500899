"""The table of faults, and where its rows are kept; the full form has more of each fault."""

import json
import os

from fault_counts import FaultCounts

from bench.table import RESULTS, Row, report

NAME = "faults"
IS_FULL = os.environ.get("FULL") == "1"
KILLS = int(os.environ.get("KILLS", "20" if IS_FULL else "1"))  # of each stage
AWAY_S = 60.0 if IS_FULL else 10.0


class FaultTable:
    """Rows by metric; a fault that runs again replaces its earlier rows."""

    def __init__(self) -> None:
        self._rows: list[Row] = []

    def add(self, fault: str, tally: FaultCounts, *more: Row) -> None:
        """Add a fault's rows, and then assert that nothing was lost, counted twice or refused."""
        acknowledged = tally.turns + tally.outcomes
        rows = [
            _at_most_none(f"{fault}: lost", tally.lost, f"of {tally.turns} turns, {tally.outcomes} outcomes"),
            _at_most_none(f"{fault}: counted twice", tally.twice, f"of {tally.trained} trained"),
            _at_most_none(f"{fault}: requests failed", tally.failed, f"of {tally.requests}"),
        ]
        self.note(*rows, *more)
        assert acknowledged > 0
        assert tally.lost == tally.twice == tally.failed == 0, tally

    def note(self, *rows: Row) -> None:
        self._rows += rows

    def write(self) -> None:
        """Write the rows into the committed table, if this is the full form."""
        if self._rows and IS_FULL:
            report(NAME, merged(_kept(), self._rows))


def _at_most_none(metric: str, value: float, unit: str) -> Row:
    return Row(metric, value, unit, goal=0, holds=value == 0)


def _kept() -> list[Row]:
    path = RESULTS / f"{NAME}.json"
    return [Row(**row) for row in json.loads(path.read_text())["rows"]] if path.exists() else []


def merged(kept: list[Row], new: list[Row]) -> list[Row]:
    by_metric = {row.metric: row for row in kept} | {row.metric: row for row in new}
    return list(by_metric.values())
