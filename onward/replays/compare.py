"""`onward compare A B`: two replays side by side: what was set otherwise, and what came of it."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from learner.off_policy.estimators import Paired
from onward.output import console, show_json
from onward.replays.estimates.turns_kept import FILE, KeptTurns, compare_on, difference, kept
from onward.replays.provenance import made_by
from onward.replays.report import read

_TAIL = 10  # updates whose mean stands for the end
_FIGURES = ("reward", "kl", "entropy", "ratio", "truncated", "kept_share", "divergence", "gradient_norm")
_SAME = ("from", "to", "missing", "spec", "holdout", "rewards_digest", "weights_digest")


def compare_replays(first: Path, second: Path, *, as_json: bool = False) -> dict[str, Any]:
    """Print two replays side by side, and return the comparison.

    `same` is what both have, `settings` what differs, `seeds` are the learners', `figures` are pairs by name, and
    `says` is what users held out can say of each. `paired` is what they say of the second less the first; None where
    neither replay held any out. Raises ConfigError when either is no replay."""
    a, b = read(first), read(second)
    learners = [report["learner"] for report in (a, b)]
    compared = {
        "same": {name: a[name] == b[name] for name in _SAME} | {"where": a["where"] == b["where"]},
        "says": tuple(_said(report) for report in (a, b)),
        "paired": _paired((first, second), (a, b)),
        "seeds": tuple(learner.get("seed") for learner in learners),
        "settings": dict(_different(learners[0], learners[1])),
        "figures": dict(_figures(a, b)),
        "provenance": {**made_by(), "replays": tuple(report["provenance"] for report in (a, b))},
    }
    if as_json:
        show_json(compared)
    else:
        _show(console(), compared, (str(first), str(second)))
    return compared


def _said(report: dict[str, Any]) -> str | None:
    held = report["held_out"]
    return None if held is None else held["says"]


def _paired(folders: tuple[Path, Path], reports: tuple[dict[str, Any], dict[str, Any]]) -> dict[str, Any] | None:
    if not any(report["held_out"] for report in reports):
        return None
    turns: list[KeptTurns] = []
    why: list[str] = []
    for folder, report in zip(folders, reports, strict=True):
        held, found = report["held_out"], kept(folder)
        if held is None:
            why.append(f"{folder} held no users out (`--holdout`)")
        elif found is None:
            lacks = f"{folder / FILE}: no such file; replay it again, with this build"
            why.append(f"{folder}: {held['refused']}" if held["refused"] else lacks)
        else:
            turns.append(found)
    return difference(Paired("; ".join(why)) if why else compare_on(*turns))


def _different(a: dict[str, Any], b: dict[str, Any], above: str = "") -> Iterator[tuple[str, tuple[Any, Any]]]:
    for name in sorted(a.keys() | b.keys()):
        pair = mine, other = a.get(name), b.get(name)
        if isinstance(mine, dict) and isinstance(other, dict):
            yield from _different(mine, other, f"{above}{name}.")
        elif mine != other:
            yield above + name, pair


def _figures(a: dict[str, Any], b: dict[str, Any]) -> Iterator[tuple[str, tuple[float | None, float | None]]]:
    yield "rewards", (a["rewards"], b["rewards"])
    yield "updates", (len(a["updates"]), len(b["updates"]))
    yield "turns learned", (_sum(a, "turns"), _sum(b, "turns"))
    for name in _FIGURES:
        yield f"{name}, last {_TAIL} updates", (_tail(a, name), _tail(b, name))
    for stratum in sorted(a["strata"].keys() | b["strata"].keys()):
        yield f"reward, {stratum}", (_reward(a, stratum), _reward(b, stratum))
    for name in ("stated", "line", "snips"):
        for bound in ("low", "value", "high"):
            pair = (_gain(a, name, bound), _gain(b, name, bound))
            if pair != (None, None):
                yield f"gain on users held out, {name}, {bound}", pair


def _sum(report: dict[str, Any], name: str) -> float:
    return float(sum(update[name] for update in report["updates"]))


def _tail(report: dict[str, Any], name: str) -> float | None:
    values = [update[name] for update in report["updates"][-_TAIL:] if name in update]
    return sum(values) / len(values) if values else None


def _reward(report: dict[str, Any], stratum: str) -> float | None:
    found = report["strata"].get(stratum)
    return None if found is None else float(found["reward"])


def _gain(report: dict[str, Any], estimator: str, bound: str) -> float | None:
    """Over what was earned on the same turns."""
    found = (report["held_out"] or {}).get("gains", {}).get(estimator)
    return None if found is None else float(found[bound])


def _told(pair: dict[str, Any]) -> str:
    if pair["refused"] is not None:
        return f"cannot be told: {pair['refused']}"
    stated = pair["differences"]["stated"]
    return f"{stated['value']:+.3f} a turn, 95 % {stated['low']:+.3f} to {stated['high']:+.3f}, on the same turns"


def _show(to: Console, compared: dict[str, Any], names: tuple[str, str]) -> None:
    same = compared["same"]
    period = same["from"] and same["to"]
    to.print(
        "the same records" if period else "[yellow]other records[/]: figures of rewards do not compare", markup=True
    )
    if not same["missing"]:
        to.print("[yellow]records are missing[/] of the one that are not of the other", markup=True)
    if not same["spec"]:
        to.print("[yellow]other reward specs[/]: rewards are not in the same measure", markup=True)
    if not same["where"]:
        to.print("[yellow]turns are chosen otherwise[/] (`--where`): figures of rewards do not compare", markup=True)
    if same["weights_digest"]:
        to.print("the same weights, bit for bit")
    for name, words in zip(names, compared["says"], strict=True):
        if words is not None:
            to.print(f"{name}, users held out: {words}")
    if compared["paired"] is not None:
        to.print(f"users held out, {names[1]} less {names[0]}: {_told(compared['paired'])}")
    table = Table(Column(no_wrap=True), *(Column(Text(name)) for name in names))  # a setting's name can be copied whole
    table.add_row("learner.seed", *("-" if seed is None else str(seed) for seed in compared["seeds"]))
    for name, pair in compared["settings"].items():
        if name == "seed":
            continue
        table.add_row(f"learner.{name}", *(Text(str(value)) for value in pair))
    table.add_section()
    for name, pair in compared["figures"].items():
        table.add_row(Text(name), *("-" if value is None else f"{value:,.4g}" for value in pair))
    to.print(table)
