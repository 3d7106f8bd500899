"""How alike the tools of production and simulation are, tool by tool: a table for people, and JSON."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from rich.table import Table

from core.provenance import Origin
from environments.fidelity.replaying import Compared

_SHOWN = 3  # calls of a tool whose shape differs


@dataclass(frozen=True)
class ToolFidelity:
    """One tool. Shares are of the calls that could be compared, None where none could.

    `latency_ratio` is the median of the simulation's seconds through production's, of calls whose times are known."""

    tool: str
    calls: int
    compared: int
    equal: float | None
    same_shape: float | None
    latency_ratio: float | None
    no_tool: int
    not_recorded: int


def by_tool(compared: Sequence[Compared]) -> list[ToolFidelity]:
    names = sorted({each.tool for each in compared})
    return [_of_tool(name, [each for each in compared if each.tool == name]) for name in names]


def _of_tool(name: str, calls: Sequence[Compared]) -> ToolFidelity:
    counts = Counter(each.likeness for each in calls)
    count = counts["equal"] + counts["same_shape"] + counts["other_shape"]
    ratios = [
        each.seconds / each.recorded_seconds for each in calls if each.seconds is not None and each.recorded_seconds
    ]
    return ToolFidelity(
        tool=name,
        calls=len(calls),
        compared=count,
        equal=counts["equal"] / count if count else None,
        same_shape=(counts["equal"] + counts["same_shape"]) / count if count else None,
        latency_ratio=median(ratios) if ratios else None,
        no_tool=counts["no_tool"],
        not_recorded=counts["not_recorded"],
    )


def as_json(compared: Sequence[Compared], left_out: Mapping[str, int], origin: Origin) -> dict[str, Any]:
    """Return all of it: by tool, then each call whose shape differs with both shapes, then what was left out."""
    return {
        "sessions": len({each.session_id for each in compared}),
        "tools": [asdict(each) for each in by_tool(compared)],
        "other_shape": [asdict(each) for each in compared if each.likeness == "other_shape"],
        "left_out": dict(left_out),
        "provenance": dict(origin),
    }


def as_table(compared: Sequence[Compared]) -> Table:
    table = Table("tool", "calls", "compared", "equal", "same shape", "seconds, simulated / recorded", "no such tool")
    for each in by_tool(compared):
        shares = (_share(each.equal), _share(each.same_shape))
        ratio = "–" if each.latency_ratio is None else f"{each.latency_ratio:.2f}"
        table.add_row(each.tool, str(each.calls), str(each.compared), *shares, ratio, str(each.no_tool))
    return table


def differing(compared: Sequence[Compared]) -> list[str]:
    """Return some calls of each tool whose shape differs, in words."""
    lines, shown = [], Counter[str]()
    for each in compared:
        if each.likeness == "other_shape" and shown[each.tool] < _SHOWN:
            shown[each.tool] += 1
            lines.append(f"{each.tool}: recorded {each.recorded_shape[:4]}, simulated {each.shape[:4]}")
    return lines


def _share(share: float | None) -> str:
    return "–" if share is None else f"{share:.0%}"
