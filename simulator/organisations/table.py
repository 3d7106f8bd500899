"""What each organisation got: how much of its last answers is to its own taste, and how much to those of the others."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from simulator.drive import Driver
from simulator.organisations.tastes import said, taste_for
from simulator.outcome.truth import Lived
from simulator.tasks.taste import Style, judge_write

FIRST = 100
"""Answers that are counted of an organisation, which has a part of the users, at its start and at its end."""
_LEAST_RISE = 0.2


def in_style(lived: Sequence[Lived], style: Style) -> float:
    """Return the share of written functions that are in a style; those that do not parse are in none."""
    liked, taste, judged = 0, taste_for(style), 0
    for one in lived:
        if one.session.quality is None:
            continue
        judged += 1
        found = judge_write(one.session.code, one.session.quality.tests_pass, taste.style(one.session.task))
        liked += found.in_taste and found.syntax_ok
    return liked / judged if judged else 0.0


def report_of(drivers: Mapping[str, Driver], styles: Mapping[str, Style]) -> dict[str, Any]:
    """Return, by organisation, the shares at the start and the end, each in everybody's style, and what went wrong."""
    found: dict[str, Any] = {}
    for name, driver in drivers.items():
        truth = driver.truth
        lived = sorted(truth.judged, key=lambda one: one.started_s)
        versions = {str(version) for one in lived for version in one.session.versions}
        found[name] = {
            "likes": said(styles[name]),
            "start": {other: in_style(lived[:FIRST], style) for other, style in styles.items()},
            "end": {other: in_style(lived[-FIRST:], style) for other, style in styles.items()},
            "sessions": len(truth.lived),
            "versions": len(versions),
            "policies": sorted({version.rpartition("@")[0] or "base" for version in versions}),
            "failed_requests": len(truth.failures),
            "failures": truth.failures[:5],
        }
    return found


def succeeded(report: Mapping[str, Any]) -> bool:
    """Return whether each got more of what it likes, and gets it more than what any other likes, and nobody failed."""
    return all(
        not of["failed_requests"]
        and of["end"][name] - of["start"][name] >= _LEAST_RISE
        and of["end"][name] == max(of["end"].values())
        for name, of in report.items()
    )


def show(report: Mapping[str, Any]) -> None:
    """Print the table. The columns say to whose taste the answers are, in per cent."""
    table = Table(title="Answers to whose taste, at the start and at the end, in %", box=SIMPLE)
    for heading in ("", "likes"):
        table.add_column(heading, no_wrap=True)
    for heading in (*(f"{name}'s" for name in report), "versions", "failed"):
        table.add_column(heading, justify="right", no_wrap=True)
    for name, of in report.items():
        shares = [f"{100 * of['start'][other]:.0f} → {100 * of['end'][other]:.0f}" for other in report]
        table.add_row(name, of["likes"], *shares, str(of["versions"]), str(of["failed_requests"]))
    Console().print(table)
