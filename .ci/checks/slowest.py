"""Prints the tests that took longest in the last check, with their seconds, as rows of a table.

    PYTHONPATH=.ci python -m checks.slowest [RECORD] [COUNT]

RECORD: what a part's tests left, build/ci-records/test unless told otherwise; COUNT: how many, twenty unless told."""

import sys
from pathlib import Path

from checks import records


def main(record: str = "build/ci-records/test", count: str = "20") -> None:
    found = records.slowest(Path(record), int(count))
    if not found:
        sys.exit(f"{record}: no test left its seconds there")
    for test, took_s in found:
        file, _, name = test.partition("::")
        print(f"| `{file}` | `{name}` | {took_s:.0f} |")


if __name__ == "__main__":
    main(*sys.argv[1:])
