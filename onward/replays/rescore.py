"""`onward rescore`: the past under another spec beside the one in force, before anybody adopts it."""

import time
from contextlib import closing, nullcontext
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from rich.text import Text

from core.clock import ManualClock
from core.errors import ConfigError
from core.events import Completion, Topic
from core.reward_spec import RewardSpec, load_reward_spec
from core.store import open_sqlite
from ingest.archive.history import History
from onward.output import console
from onward.replays.exports.reports import report_file
from onward.replays.history import open_history, period, require_directory
from onward.replays.provenance import VersionRange, provenance_of
from onward.replays.scratch import scratch
from onward.wiring.foundation import open_foundation
from scoring.comparison import Distribution, Last, SpecComparison, compare, last_rewards
from scoring.rescore import rescore

_BEGINNING = datetime(1970, 1, 1, tzinfo=UTC)
_BARS = " ▁▂▃▄▅▆▇█"
_FIGURES = ("turns", "revisions", "mean", "deviation", "p10", "p50", "p90", "negative")


def compare_specs(directory: Path, spec: Path, begin: str | None, end: str | None, out: Path | None) -> dict[str, Any]:
    """Print the distributions of rewards under two specs; return their figures, which `out` gets too.

    Raises ConfigError naming the option or the file at fault."""
    require_directory(directory)
    times, new_spec = period(begin, end), load_reward_spec(spec)
    versions = VersionRange()
    with (
        nullcontext() if out is None else report_file(out) as write,
        closing(open_foundation(directory)) as foundation,
    ):
        history, now = open_history(foundation, Topic.TURNS, *times), foundation.clock.now()
        with Progress(console=Console(stderr=True)) as progress:
            started_s = time.monotonic()
            with scratch(foundation.layout.rescored, f"{directory}") as place:
                old, turns = _score(
                    history, foundation.spec, now, place / "in force.db", progress, "in force", versions
                )
                new, _ = _score(history, new_spec, now, place / "new.db", progress, "new", versions)
            took_s = time.monotonic() - started_s
        if not turns:
            raise ConfigError(f"{directory}: no turns to score between --from and --to")
        comparisons, origin = compare(old, new), provenance_of(foundation, versions)
        specs = {"old": foundation.spec.digest, "new": new_spec.digest}
        told = {"specs": specs, "turns": turns, "seconds": took_s, "comparisons": comparisons, "provenance": origin}
        figures: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(told))
        if write is not None:
            write(figures, _rows(figures["comparisons"]))
    _show(comparisons)
    return figures


def _rows(comparisons: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return two rows for each workload, that of all first: under the spec in force, and under the new one."""
    return [
        {
            "workload": each["workload"] or "all",
            "spec": name,
            **each[side],
            "rewarded_by_it_only": each[f"only_{side}"],
            "correlation": each["correlation"],
            "changed_sign": each["changed_sign"],
        }
        for each in comparisons
        for side, name in (("old", "in force"), ("new", "new"))
    ]


def _score(
    history: History,
    spec: RewardSpec,
    now: datetime,
    ledger: Path,
    progress: Progress,
    name: str,
    versions: VersionRange,
) -> tuple[Last, int]:
    """Return the last reward of each turn, and the number of turns.

    The ledger is on disk: memory does not grow with the past."""
    task, turns = progress.add_task(f"score, spec {name}", total=1.0), 0
    with closing(open_sqlite(ledger)) as store:

        def read() -> Any:
            nonlocal turns
            for records in versions.seen(history.read()):
                turns += sum(isinstance(record.event, Completion) for record in records)
                yield records
                progress.update(task, completed=history.share)

        rewards = last_rewards(rescore(read(), spec, store, ManualClock(_BEGINNING), now))
    progress.update(task, completed=1.0)
    return rewards, turns


def _show(comparisons: list[SpecComparison]) -> None:
    shown = console()
    for one in comparisons:
        shown.print(_table(one))
        correlation = "-" if one.correlation is None else f"{one.correlation:+.3f}"
        sign = "-" if one.changed_sign is None else f"{one.changed_sign:.1%}"
        shown.print(
            f"the same turns: correlation {correlation}, {sign} change sign; "
            f"{one.only_old} rewarded only as it is, {one.only_new} only by the new\n"
        )


def _table(one: SpecComparison) -> Table:
    table = Table(title=Text(one.workload or "all workloads"), title_justify="left")
    for column in ("", "in force", "new"):
        table.add_column(column, justify="left" if not column else "right")
    for name in _FIGURES:
        table.add_row(name, *(_figure(name, getattr(side, name)) for side in (one.old, one.new)))
    for name in sorted(one.old.components.keys() | one.new.components.keys()):
        values = (side.components.get(name) for side in (one.old, one.new))
        table.add_row(Text(f"  {name}"), *("-" if value is None else f"{value:+.4f}" for value in values))
    table.add_row(f"{one.old.low:+.2f} … {one.old.high:+.2f}", _bars(one.old), _bars(one.new))
    return table


def _figure(name: str, value: float | None) -> str:
    if value is None:
        return "-"
    if name == "negative":
        return f"{value:.1%}"
    return str(value) if isinstance(value, int) else f"{value:+.4f}"


def _bars(one: Distribution) -> str:
    most = max(*one.histogram, 1)
    return "".join(_BARS[-(-count * (len(_BARS) - 1) // most)] for count in one.histogram)
