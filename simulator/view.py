"""A view of the run as it happens: a live page in a terminal, a line every few seconds elsewhere."""

import asyncio
import contextlib
import sys
from collections.abc import Sequence

from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from simulator.drive import Driver
from simulator.outcome.curves import Point, RunCurves
from simulator.service import UNREACHABLE, ServiceView

_EVERY_S = 1.0
_LINE_EVERY_S = 5.0
_BARS = "▁▂▃▄▅▆▇█"
_WIDTH = 60


def sparkline(values: Sequence[float | None]) -> str:
    """Draw shares between 0 and 1 as a line of blocks, with a gap where nothing is known."""
    return "".join(" " if value is None else _BARS[min(7, int(value * 8))] for value in values[-_WIDTH:])


class RunView:
    def __init__(self, driver: Driver, service: ServiceView, curves: RunCurves) -> None:
        self._driver = driver
        self._service = service
        self._curves = curves
        self._metrics: dict[str, float] = {}

    async def watch(self) -> None:
        """Sample and show the run until cancelled."""
        if not sys.stdout.isatty():
            await self._lines()
            return
        with Live(self._page(), console=Console(), refresh_per_second=4) as live:
            while True:
                await self._sample()
                live.update(self._page())
                await asyncio.sleep(_EVERY_S)

    async def _lines(self) -> None:
        printed_s = -_LINE_EVERY_S
        while True:
            await self._sample()
            if self._curves.points[-1].second - printed_s >= _LINE_EVERY_S:
                printed_s = self._curves.points[-1].second
                print(" | ".join(f"{name} {value}" for name, value in self._figures()), flush=True)
            await asyncio.sleep(_EVERY_S)

    async def _sample(self) -> None:
        with contextlib.suppress(*UNREACHABLE):  # the view shows; the driver counts failures
            self._metrics = await self._service.metrics()
        moment = self._driver.elapsed_s
        truth = self._driver.truth
        served = self._metrics.get("onward_policy_version")
        self._curves.points.append(
            Point(
                second=round(moment, 1),
                quality=truth.quality_at(moment),
                accepted=truth.accepted_share(moment),
                version=None if served is None else int(served),
                feedback_to_served_p50_s=self._latency("0.5"),
            )
        )

    def _latency(self, quantile: str) -> float | None:
        return self._metrics.get(f'onward_feedback_to_served_quantile_seconds{{quantile="{quantile}"}}')

    def _figures(self) -> list[tuple[str, str]]:
        truth, traffic, moment = self._driver.truth, self._driver.traffic, self._driver.elapsed_s
        point = self._curves.points[-1] if self._curves.points else Point()
        turns = sum(len(lived.session.inference_ids) for lived in truth.lived)
        return [
            ("time", f"{moment:.0f} of {traffic.seconds:.0f} s"),
            ("true quality", _percent(point.quality)),
            ("reported accepted", _percent(point.accepted)),
            ("version", "-" if point.version is None else str(point.version)),
            ("sessions", f"{len(truth.lived)} ({len(truth.lived) / max(moment, 1):.1f}/s)"),
            ("turns", str(turns)),
            ("feedback to served", f"p50 {_seconds(self._latency('0.5'))}, p99 {_seconds(self._latency('0.99'))}"),
            ("swaps", f"{self._metrics.get('onward_swaps_total', 0):.0f}"),
            ("failed", str(len(truth.failures))),
            ("turned away", str(truth.turned_away)),
        ]

    def _page(self) -> Panel:
        table = Table.grid(padding=(0, 2))
        for name, value in self._figures():
            table.add_row(Text(name, style="dim"), value)
        points = self._curves.points
        curves = Table.grid(padding=(0, 2))
        curves.add_row(Text("true quality", style="bold green"), sparkline([point.quality for point in points]))
        curves.add_row(Text("reported", style="cyan"), sparkline([point.accepted for point in points]))
        bar = ProgressBar(total=self._driver.traffic.seconds, completed=self._driver.elapsed_s, width=_WIDTH)
        return Panel(Group(table, Text(), curves, Text(), bar), title="onward: learning from simulated users")


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.0%}"


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f} s"
