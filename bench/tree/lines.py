"""The lines of the code by what they are for, against those of an earlier commit.

    python -m bench lines SINCE

It counts all lines of the Python files in a commit, blank ones too."""

import argparse
import subprocess
from collections import Counter
from pathlib import Path

from bench.table import Row, report

ROOT = Path(__file__).resolve().parents[2]
GOALS = {"product": 0.9, "tests": 0.75, "bench": None}
MOST_A_LINE = 0.93  # lines of tests for one of the product: 58,000 for the 62,541 that there were at bdf395a1


def lines(commit: str) -> Counter[str]:
    """Return the lines of product, tests and benchmarks at a commit."""
    command = ["git", "grep", "-c", "", commit, "--", "*.py"]
    told = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    counts: Counter[str] = Counter()
    for line in told.splitlines():
        path, _, count = line.removeprefix(f"{commit}:").rpartition(":")
        top = path.partition("/")[0]
        counts[top if top in GOALS else "product"] += int(count)
    return counts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("since", help="the commit to compare with")
    since = parser.parse_args().since
    before, now = lines(since), lines("HEAD")
    rows = []
    for name, goal in GOALS.items():
        ratio = now[name] / before[name]
        against = f"{before[name]:,} at {since}"
        rows.append(Row(name, now[name], "lines", against, ratio, goal, goal is None or ratio <= goal))
    share, once = now["tests"] / now["product"], before["tests"] / before["product"]
    against = f"{once:.3g} at {since}"
    rows.append(
        Row("tests, of the product's", share, "lines a line", against, share, MOST_A_LINE, share <= MOST_A_LINE)
    )
    report("lines", rows)


if __name__ == "__main__":
    main()
