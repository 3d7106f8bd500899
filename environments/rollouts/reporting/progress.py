"""How rollouts go, shown while they do: a bar where there is a terminal, else a line now and then."""

import time
from collections import Counter
from typing import Final

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)

from environments.rollouts.episode import Episode, EpisodeResult

_LINE_EVERY_S: Final = 10.0


class ProgressBar:
    """Shows how many episodes have ended, at what rate, and how long the others will take."""

    def __init__(self, console: Console, total: int | None, ended: int) -> None:
        """Show `total` episodes, None: without end, of which `ended` have ended before."""
        self._console, self._total, self._before, self._ended = console, total, ended, ended
        self._verdicts = Counter[str]()
        self._passed = 0
        self._under_way = 0
        self._began_s = self._said_s = time.monotonic()
        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[told]}"),
            TimeRemainingColumn(compact=True),
            console=console,
            disable=not console.is_terminal,
        )
        self._bar: TaskID = self._progress.add_task("episodes", total=total, completed=ended, told="")

        self._progress.start()

    def close(self) -> None:
        self._progress.stop()
        self._say_line()

    def began(self, episode: Episode) -> None:
        self._under_way += 1
        self._show()

    def ended(self, result: EpisodeResult, *, again: bool) -> None:
        self._under_way -= 1
        self._verdicts["tried again" if again else result.verdict] += 1
        self._passed += result.reward is not None and result.reward >= 1
        self._ended += not again
        self._show()
        if not self._console.is_terminal and time.monotonic() - self._said_s >= _LINE_EVERY_S:
            self._say_line()

    @property
    def told(self) -> str:
        """The figures in words."""
        minutes = max(time.monotonic() - self._began_s, 1e-9) / 60
        parts = [f"{(self._ended - self._before) / minutes:.1f} a minute", f"{self._under_way} under way"]
        parts += [f"{self._passed} passed"]
        parts += [f"{count} {name.replace('_', ' ')}" for name, count in sorted(self._verdicts.items()) if count]
        return ", ".join(parts)

    def _show(self) -> None:
        self._progress.update(self._bar, completed=self._ended, told=self.told)

    def _say_line(self) -> None:
        self._said_s = time.monotonic()
        of = "" if self._total is None else f" of {self._total}"
        self._console.print(f"{self._ended}{of} episodes: {self.told}", highlight=False)
