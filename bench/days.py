"""The day of each committed result, as a table of `docs/results.md`.

    python -m bench.days

It writes the table. A result says its day itself since `bench/table.py` writes it down. An older one was made at its
commit's day or later, as the history tells it; where that commit is not in the history, nobody can tell."""

import json
import subprocess
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bench.check import ROOT, commits
from bench.headline.page import PAGE, page_with
from bench.table import RESULTS

MARKS = "<!-- days: made by `python -m bench.days` -->", "<!-- end of days -->"
NOT_TOLD = "not told"
_SHORT = 12  # digits of a commit, as results name it
Days = Mapping[str, str]


def table(directory: Path = RESULTS, root: Path = ROOT) -> str:
    """Return the days of all results as Markdown, a line for each commit that made rows of one. Raises BadResult."""
    known = days_of_history(root)
    lines = ["| result | commit | day |", "|---|---|---|"]
    for file in sorted(directory.glob("*.json")):
        content = json.loads(file.read_text())
        if isinstance(content, dict) and "rows" in content:  # else runs, of which a result is made
            lines += [f"| {file.name} | {made} | {day} |" for made, day in days_of(file.stem, content, known)]
    return "\n".join(lines)


def days_of(name: str, content: Mapping[str, Any], known: Days) -> Iterator[tuple[str, str]]:
    """Yield each commit that made rows of a result, and their day. Raises BadResult."""
    for made in sorted(commits(name, content)):
        if made == content.get("commit") and "day" in content:
            yield made, content["day"]
        else:
            day = known.get(made.removesuffix("-dirty")[:_SHORT])
            yield made, NOT_TOLD if day is None else f"{day}, its commit's"


def days_of_history(root: Path) -> Days:
    """Return the day (UTC) of each commit that HEAD stands upon, by its first digits."""
    git = ["git", "log", "--format=%H %ct", "HEAD"]
    told = subprocess.run(git, cwd=root, capture_output=True, text=True, check=True).stdout.splitlines()
    each = (line.split() for line in told)
    return {commit[:_SHORT]: datetime.fromtimestamp(int(at_s), UTC).date().isoformat() for commit, at_s in each}


def page_of_days(text: str, rows: str) -> str:
    return page_with(text, rows, *MARKS)


def main() -> None:
    PAGE.write_text(page_of_days(PAGE.read_text(), table()))


if __name__ == "__main__":
    main()
