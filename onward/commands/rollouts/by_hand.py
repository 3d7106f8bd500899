"""`onward rollouts`: the model works on tasks in sandboxes, with a bar that shows how it goes and a page at the end."""

import asyncio
import signal
from collections.abc import Mapping
from pathlib import Path

from core.settings import Settings
from environments.rollouts.journal import RolloutJournal
from environments.rollouts.plan import RolloutPlan
from environments.rollouts.reporting.progress import ProgressBar
from onward.directory.addresses import find_urls
from onward.directory.layout import Layout
from onward.output import console
from onward.wiring.foundation import read_directory
from onward.wiring.rollouts import roll_out


def run_by_hand(directory: Path, overrides: Mapping[str, str]) -> None:
    """Run rollouts in the foreground, until they are done or one says to end; print where the report is.

    Raises ConfigError for a setting or a task at fault, or where no service runs."""
    layout, settings = read_directory(directory, overrides)
    base_url = settings.rollouts.requests.base_url or find_urls(directory)[0] + "/v1"
    asyncio.run(_run(layout, settings, base_url))
    console().print(f"report: {layout.rollouts / 'report.html'}")


async def _run(layout: Layout, settings: Settings, base_url: str) -> None:
    ending, to = asyncio.Event(), console()
    bars: list[ProgressBar] = []

    def watch(plan: RolloutPlan, journal: RolloutJournal) -> ProgressBar:
        bars.append(ProgressBar(to, plan.episodes, journal.ended()))
        return bars[0]

    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, ending.set)
    try:
        await roll_out(layout, settings, base_url, watch, ending)
    finally:
        for bar in bars:
            bar.close()
