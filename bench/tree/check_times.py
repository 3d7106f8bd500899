"""The minutes that the check of a commit took, by what it wrote down itself.

    python -m bench check_times build/ci.json

The rows name the commit that was checked. What was installed before counts as the check found it."""

import argparse
import json
from dataclasses import replace
from pathlib import Path

from bench.table import Row, report

ALL_MINUTES, TEST_MINUTES = 22.0, 5.5
TESTS = ("test", "timed")  # what `make test` runs


def rows_of(told: dict[str, object]) -> list[Row]:
    """Return the rows of one run. Raises ValueError where it did not pass: a run that ended early was shorter."""
    if told["passed"] is not True:
        raise ValueError(f"the check of {told['commit']} did not pass")
    parts = told["parts"]
    assert isinstance(parts, list) and isinstance(told["seconds"], int) and isinstance(told["commit"], str)
    minutes = {part["name"]: part["seconds"] / 60 for part in parts}
    whole, tests = told["seconds"] / 60, sum(minutes[name] for name in TESTS)
    rows = [
        Row.at_most("`.ci/run`", whole, "min", "the bar, cached", whole / ALL_MINUTES, 1.0),
        Row.at_most("`make test`, installed", tests, "min", "the bar", tests / TEST_MINUTES, 1.0),
        *(Row(f"part {name}", value, "min") for name, value in minutes.items()),
    ]
    return [replace(row, commit=told["commit"][:12]) for row in rows]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("told", type=Path, help="the check's build/ci.json")
    report("check_times", rows_of(json.loads(parser.parse_args().told.read_text())))


if __name__ == "__main__":
    main()
