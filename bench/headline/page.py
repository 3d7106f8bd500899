"""The headline's rows as a table of `docs/results.md`, and whether they are there as they were measured."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bench.table import RESULTS

PAGE = Path(__file__).resolve().parents[2] / "docs" / "results.md"
BEGIN, END = "<!-- headline: made by `make bench-headline` -->", "<!-- end of headline -->"


def table() -> str:
    """Return the rows of `bench/results/headline.json` as Markdown."""
    return table_of(json.loads((RESULTS / "headline.json").read_text()))


def table_of(content: Mapping[str, Any]) -> str:
    """Return a headline as Markdown; one of before the day was written down does not say it."""
    before = content.get("against")
    when = f", {content['day']}" if "day" in content else ""
    lines = [f"At {content['commit']}{when}, on {content['machine']}.", ""]
    heads = ["figure", "now", "spread", *([f"at {before}"] if before else []), "against", "goal", "holds"]
    lines += [f"| {' | '.join(heads)} |", f"|{'---|' * len(heads)}"]
    for row in content["rows"]:
        low, high = row["spread"]
        then = [f"{row['before']:.3g}" if "before" in row else "–"] if before else []
        cells = [row["metric"], f"{row['value']:.3g} {row['unit']}", f"{low:.3g} to {high:.3g}", *then]
        cells += [row["against"], f"{row['goal']:g}", "yes" if row["holds"] else "no"]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def page_with(text: str, rows: str, mark: str = BEGIN, last: str = END) -> str:
    """Return the page's text with these rows between its marks. Raises ValueError where it has none."""
    before, begin, rest = text.partition(mark)
    _, end, after = rest.partition(last)
    if not (begin and end):
        raise ValueError(f"{PAGE}: the marks {mark} and {last} are missing")
    return f"{before}{mark}\n{rows}\n{last}{after}"


def write_page() -> None:
    PAGE.write_text(page_with(PAGE.read_text(), table()))


def is_shown() -> bool:
    """Return whether the page has the rows as they were measured."""
    text = PAGE.read_text()
    return page_with(text, table()) == text
