"""`onward judge agreement`: compares the judge's votes on turns with their outcomes."""

from collections.abc import Mapping
from pathlib import Path

import msgspec
from rich.table import Table
from rich.text import Text

from onward.output import console, show_json
from onward.replays.history import require_directory
from onward.replays.provenance import VersionRange, provenance_of
from onward.wiring.foundation import open_foundation
from scoring.judge.agreement import ALL, LEAST, Agreement, agreements


def show_agreement(directory: Path, overrides: Mapping[str, str], *, as_json: bool) -> None:
    """Print how far the judge agrees with users. Raises ConfigError for a directory that is no service's."""
    require_directory(directory, overrides)
    foundation = open_foundation(directory, overrides)
    try:
        name = foundation.settings.judge.outcome
        with foundation.store.look() as view:
            found = agreements(view.outcomes.of_judged_turns(name), name, foundation.spec.roles)
        origin = provenance_of(foundation, VersionRange()) if as_json else None
    finally:
        foundation.close()
    if as_json:
        told = {"outcome": name, "agreements": msgspec.to_builtins(found), "provenance": origin}
        show_json(told)
        return
    shown = console()
    if not found:
        shown.print(f"no turn has both {name!r} by a judge and an outcome to hold it against")
        return
    shown.print(_figures(found))
    for agreement in found:
        if agreement.against == ALL and agreement.figures is not None:
            shown.print(_calibration(agreement))
    if any(agreement.figures is None for agreement in found):
        shown.print(f"-: too few pairs; figures are shown from {LEAST} on")


def _figures(found: list[Agreement]) -> Table:
    table = Table("version", "against", "pairs", "accuracy", "kappa", "Brier", "of base rate", "good", "judged")
    for each in found:
        figures = each.figures
        shown: tuple[str, ...] = ("-",) * 6
        if figures is not None:
            kappa = "-" if figures.kappa is None else f"{figures.kappa:.2f}"
            rest = (figures.brier, figures.brier_of_base_rate, figures.good, figures.judged)
            shown = (f"{figures.accuracy:.2f}", kappa, *(f"{value:.3f}" for value in rest))
        table.add_row(Text(each.version), Text(each.against), str(each.pairs), *shown)
    return table


def _calibration(agreement: Agreement) -> Table:
    table = Table("judged", "pairs", "mean", "turned out good", title=Text(f"Calibration of {agreement.version}"))
    assert agreement.figures is not None
    for each in agreement.figures.calibration:
        figures = ("-", "-") if each.judged is None else (f"{each.judged:.2f}", f"{each.good:.2f}")
        table.add_row(f"{each.start:.1f} to {each.end:.1f}", str(each.pairs), *figures)
    return table
