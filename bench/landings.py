"""The landings: commits that passed the check, here or on another machine, by the table in `docs/development.md`."""

import re
import subprocess
from pathlib import Path

PAGE = Path("docs", "development.md")
HEAD = "| commit | day | minutes | flaky | result |"
ROW = re.compile(
    r"\| (?P<commit>[0-9a-f]{8,40}) \| \d{4}-\d{2}(-\d{2})? \| (\d+|ended by hand)\b[^|]* \| [^|]+"
    r" \| (?P<result>passed|failed: [^|]+) \|"
)


class BadTable(Exception):
    """A table that does not say which commits landed; the message says what is wrong with it."""


def landings(root: Path) -> list[str]:
    """Return the landings in the history of HEAD, the newest first. Raises BadTable."""
    told = tuple(passed((root / PAGE).read_text()))
    found = [commit for commit in history("HEAD", root) or () if commit.startswith(told)]
    if not found:
        raise BadTable(f"{PAGE}: none of the commits that passed is in the history")
    return found


def passed(page: str) -> list[str]:
    """Return the commits that passed by the table of a page, as they stand there. Raises BadTable."""
    lines = page.splitlines()
    if lines.count(HEAD) != 1:
        raise BadTable(f"{PAGE}: there are {lines.count(HEAD)} tables with the head {HEAD}, and there should be one")
    found = []
    for line in lines[lines.index(HEAD) + 2 :]:  # the rows, below the head and its rule
        if not line.startswith("|"):
            break
        row = ROW.fullmatch(line)
        if row is None:
            wanted = "a commit, a day, minutes, what was flaky, and `passed` or `failed: why`"
            raise BadTable(f"{PAGE}: a row of {HEAD} should have {wanted}; this has not: {line}")
        if row["result"] == "passed":
            found.append(row["commit"])
    return found


def history(commit: str, root: Path) -> list[str] | None:
    """Return the commit and all that it stands upon, the newest first; None for one that the repository lacks."""
    git = ["git", "rev-list", "--topo-order", f"{commit}^{{commit}}", "--"]
    told = subprocess.run(git, cwd=root, capture_output=True, text=True, check=False)
    return told.stdout.split() if told.returncode == 0 else None
