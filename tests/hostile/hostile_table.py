"""The table that the siege prints, and its rows that are kept."""

import os

from hostile_world import Counts, Phases
from rich.console import Console
from rich.table import Table

from bench.table import Row, report

IS_FULL = os.environ.get("FULL") == "1"
SLOWER = 2.0
GROWTH_BYTES = 300 << 20
MIB = 1 << 20


class HostileTable:
    """A table of the answers to each kind of attack, and of what the other users noticed."""

    def __init__(self) -> None:
        self._kinds = Table("attack", "sent", "answers", "wrong", title="Hostile requests and events")
        self._phases = Table(
            "while", "others' p50 ms", "p99 ms", "of idle", "RSS MiB, most", title="What the others noticed"
        )
        self._rows: list[Row] = []

    def tell(self, counts: dict[str, Counts], phases: Phases, latencies: dict[str, tuple[float, float]]) -> None:
        """Add the rows; `latencies` has p50 and p99 in seconds by phase, the first of which is idle."""
        for kind, found in counts.items():
            answers = ", ".join(f"{status or 'none'}: {count}" for status, count in sorted(found.answers.items()))
            self._kinds.add_row(kind, f"{found.sent:,}", answers, str(len(found.wrong)))
        sent = sum(found.sent for found in counts.values())
        wrong = sum(len(found.wrong) for found in counts.values())
        self._kinds.add_row("in all", f"{sent:,}", "", str(wrong))
        self._rows.append(Row("attacks answered wrongly", wrong, f"of {sent}", goal=0, holds=wrong == 0))
        idle = next(iter(latencies.values()))[1]
        for name, (p50, p99) in latencies.items():
            self._phases.add_row(
                name,
                f"{p50 * 1e3:.0f}",
                f"{p99 * 1e3:.0f}",
                f"{p99 / idle:.2f}",
                f"{phases.peak_bytes[name] / MIB:,.0f}",
            )
            if p99 != idle:
                against = f"idle, {idle * 1e3:.0f} ms"
                self._rows.append(Row.at_most(f"others' p99: {name}", p99 * 1e3, "ms", against, p99 / idle, SLOWER))
        growth = max(phases.peak_bytes.values()) - phases.peak_bytes["idle"]
        self._rows.append(
            Row("memory grew by", growth / MIB, "MiB", goal=GROWTH_BYTES / MIB, holds=growth <= GROWTH_BYTES)
        )

    def released(self, releases: int, turned_back: int, held_by: int) -> None:
        """Add what one user brought about who spoils her own part of each version."""
        turned = f"releases of {releases} that one user turned back"
        self._rows.append(Row(turned, turned_back, "releases", goal=0, holds=turned_back == 0))
        self._rows.append(Row("alarms of one user that hold releases", held_by, "alarms", goal=0, holds=held_by == 0))

    def lost(self, lost: int, acknowledged: int) -> None:
        self._rows.append(Row("acknowledged and lost", lost, f"of {acknowledged}", goal=0, holds=lost == 0))

    def show(self) -> None:
        console = Console(width=120)
        console.print(self._kinds)
        console.print(self._phases)
        if self._rows and IS_FULL:
            report("hostile", self._rows)
