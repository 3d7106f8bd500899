"""The rows on summaries: those of the small policy, and those of the shipped model, which are measured one by one."""

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from bench.table import RESULTS, Row, commit, report

NAME: Final = "summaries"
OF_ROLLOUTS: Final = "rollouts: "  # begins the names of the shipped model's rows


def report_beside(rows: Sequence[Row]) -> None:
    """Report rows of the one kind or the other, and keep those of the other kind as they are written."""
    made = [replace(row, commit=row.commit or commit()) for row in rows]
    is_of_rollouts = made[0].metric.startswith(OF_ROLLOUTS)
    kept = [row for row in _written() if row.metric.startswith(OF_ROLLOUTS) != is_of_rollouts]
    report(NAME, [*kept, *made] if is_of_rollouts else [*made, *kept])


def _written() -> list[Row]:
    """Return the rows in the file, each with the commit that made it."""
    path = RESULTS / f"{NAME}.json"
    if not path.exists():
        return []
    written = json.loads(path.read_text())
    return [Row(**{"commit": written["commit"], **each}) for each in written["rows"]]
