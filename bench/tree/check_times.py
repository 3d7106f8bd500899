"""The minutes that the check of a commit took, by what it wrote down itself.

    python -m bench check_times build/ci.json

The rows name the commit that was checked. What was installed before counts as the check found it."""

import argparse
from dataclasses import replace
from pathlib import Path

import msgspec

from bench.table import Row, report

ALL_MINUTES, TEST_MINUTES = 22.0, 5.5
TESTS = ("test", "timed")  # what `make test` runs


class Part(msgspec.Struct):
    name: str
    seconds: int


class Told(msgspec.Struct):
    """What the check writes, as far as it is read here."""

    commit: str
    seconds: int
    passed: bool
    parts: list[Part]


def rows_of(told: Told) -> list[Row]:
    """Return the rows of one run. Raises ValueError where it did not pass: a run that ended early was shorter."""
    if not told.passed:
        raise ValueError(f"the check of {told.commit} did not pass")
    minutes = {part.name: part.seconds / 60 for part in told.parts}
    whole, tests = told.seconds / 60, sum(minutes[name] for name in TESTS)
    rows = [
        Row.at_most("`.ci/run`", whole, "min", "the bar, cached", whole / ALL_MINUTES, 1.0),
        Row.at_most("`make test`, installed", tests, "min", "the bar", tests / TEST_MINUTES, 1.0),
        *(Row(f"part {name}", value, "min") for name, value in minutes.items()),
    ]
    return [replace(row, commit=told.commit[:12]) for row in rows]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("told", type=Path, help="the check's build/ci.json")
    told = msgspec.json.decode(parser.parse_args().told.read_bytes(), type=Told)
    report("check_times", rows_of(told))


if __name__ == "__main__":
    main()
