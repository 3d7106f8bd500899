"""The parts that all benchmarks share.

Contenders take turns within one run, medians are compared, and the result is one table on the screen and one JSON
file in `bench/results`."""

import json
import os
import platform
import statistics
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console
from rich.table import Table

_BENCH = Path(__file__).resolve().parent
RESULTS = _BENCH / "results"
_CODE = (":/", ":(exclude,top)bench/results", ":(exclude,top)docs", ":(exclude,top)*.md")


@dataclass(frozen=True)
class Row:
    """One figure.

    `value` is None where it cannot be measured. `ratio` compares it with `against`; `goal` bounds the ratio (None:
    measured without a goal). `commit`: the commits that made it, where it comes from runs that were made one by one."""

    metric: str
    value: float | None
    unit: str
    against: str | None = None
    ratio: float | None = None
    goal: float | None = None
    holds: bool = True
    commit: str | None = None

    @classmethod
    def at_least(cls, metric: str, value: float, unit: str, against: str, ratio: float, goal: float) -> "Row":
        return cls(metric, value, unit, against, ratio, goal, ratio >= goal)

    @classmethod
    def at_most(
        cls, metric: str, value: float, unit: str, against: str, ratio: float, goal: float, commit: str | None = None
    ) -> "Row":
        return cls(metric, value, unit, against, ratio, goal, ratio <= goal, commit)

    def written(self) -> dict[str, object]:
        """Return the row as it stands in the file."""
        return {name: value for name, value in asdict(self).items() if name != "commit" or value is not None}


def interleave(contenders: Mapping[str, Callable[[], float]], rounds: int) -> dict[str, float]:
    """Return each contender's median figure.

    They run in turns, and the first one changes every round, so that other load of the machine affects all of them
    alike."""
    figures: dict[str, list[float]] = {name: [] for name in contenders}
    names = list(contenders)
    for turn in range(rounds):
        first = turn % len(names)
        for name in names[first:] + names[:first]:
            figures[name].append(contenders[name]())
    return {name: statistics.median(values) for name, values in figures.items()}


def report(name: str, rows: Sequence[Row], card: str = "") -> None:
    """Print the table and write `bench/results/NAME.json`. `card`: the GPU that computed, if one did.

    The file's `day` is that of its writing, where rows may be of earlier runs; older files have none."""
    here = f"{card}, {machine()}" if card else machine()
    table = Table("metric", "value", "unit", "against", "ratio", "goal", "holds", title=f"{name} on {here}")
    for row in rows:
        table.add_row(
            row.metric,
            _shown(row.value),
            row.unit,
            row.against or "",
            "" if row.ratio is None else f"{row.ratio:.3g}",
            "" if row.goal is None else f"{row.goal:g}",
            "yes" if row.holds else "NO",
        )
    Console().print(table)
    RESULTS.mkdir(exist_ok=True)
    content = {"machine": here, "commit": commit(), "day": day(), "rows": [row.written() for row in rows]}
    (RESULTS / f"{name}.json").write_text(json.dumps(content, indent=2) + "\n")


def _shown(value: float | None) -> str:
    if value is None:
        return "not measured"
    return f"{value:,.4g}" if abs(value) < 1000 else f"{value:,.0f}"


def machine() -> str:
    system = f"{platform.system()} {platform.release()}, Python {platform.python_version()}"
    return f"{os.cpu_count()} x {_processor()}, {system}"


def _processor() -> str:
    """Return the processor's name where Linux tells it, else the architecture."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())


def commit() -> str:
    """Return the commit that ran; `-dirty` when tracked files differ from it, except for results and documents."""
    version = _git("rev-parse", "--short=12", "HEAD")
    return f"{version}-dirty" if _git("status", "--porcelain", "--untracked-files=no", "--", *_CODE) else version


def day() -> str:
    """Return today's date in UTC, as YYYY-MM-DD."""
    return datetime.now(UTC).date().isoformat()


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=_BENCH, capture_output=True, text=True, check=True).stdout.strip()
